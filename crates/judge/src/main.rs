//! Judges histories with a linearizability checker that others wrote. See README.md.

#![expect(
    clippy::expect_used,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a program for tests, which talks to who started it"
)]

use std::io::{BufRead, Write, stdin, stdout};
use std::{env, fs, process};

use crate::history::Event;
use crate::verdict::{Finding, judge};

mod call; // a call: absent, or executed once
mod history; // events and operations
mod lock; // an exclusive session
mod saga; // what was done and undone
#[cfg(test)]
mod tests;
mod token; // a session's fencing tokens
mod verdict; // the division into objects, each judged alone

fn main() {
    let files: Vec<String> = env::args().skip(1).collect();
    if files.is_empty() {
        answer_each();
        return;
    }
    let mut is_wrong = false;
    for file in files {
        let text = fs::read_to_string(&file).unwrap_or_else(|error| fail(&file, &error));
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        let events: Result<Vec<Event>, _> = lines.map(serde_json::from_str).collect();
        let events = events.unwrap_or_else(|error| fail(&file, &error));
        match judge(&events) {
            Ok(verdict) => {
                println!(
                    "{file}: {} objects, {} operations, {} wrong",
                    verdict.objects,
                    verdict.operations,
                    verdict.wrong.len()
                );
                for finding in &verdict.wrong {
                    is_wrong = true;
                    print_finding(finding);
                }
            }
            Err(error) => fail(&file, &error),
        }
    }
    process::exit(i32::from(is_wrong));
}

/// Histories from standard input, each ended by an empty line.
fn answer_each() {
    let mut events = Vec::new();
    for line in stdin().lock().lines() {
        let line = line.unwrap_or_else(|error| fail("standard input", &error));
        if !line.trim().is_empty() {
            let event = serde_json::from_str::<Event>(&line);
            events.push(event.unwrap_or_else(|error| fail(&line, &error)));
            continue;
        }
        let verdict = judge(&events).unwrap_or_else(|error| fail("a history", &error));
        let verdict = serde_json::to_string(&verdict).expect("a verdict is JSON");
        println!("{verdict}");
        stdout().flush().expect("standard output takes a line");
        events.clear();
    }
}

fn print_finding(finding: &Finding) {
    println!("  {} is not linearizable:", finding.key);
    for event in &finding.events {
        println!("    {}", serde_json::to_string(event).expect("an event"));
    }
}

fn fail(what: &str, error: &dyn std::fmt::Display) -> ! {
    eprintln!("judge: {what}: {error}");
    process::exit(2)
}
