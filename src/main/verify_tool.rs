//! `oncegate verify-tool`: read the options, ask for consent, run the trial, print.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use oncegate::core::trial::Verdict;
use oncegate::trial::{self, TrialOptions, TrialPlan};

use super::{Failure, complain, read, say};

/// The exit status if a declared setting was refuted.
const REFUTED: u8 = 2;
/// The exit status if a declared setting was neither proved nor refuted.
const NOT_SHOWN: u8 = 3;

/// The command line of `verify-tool`.
#[derive(Args)]
pub(super) struct VerifyTool {
    #[arg(long)]
    config: PathBuf,
    #[command(flatten)]
    options: TrialOptions,
    /// Print one line of JSON.
    #[arg(long)]
    json: bool,
    /// Do not ask for consent.
    #[arg(long)]
    yes: bool,
}

impl VerifyTool {
    /// Runs the trial and prints its report.
    ///
    /// # Errors
    /// The options are wrong, the operator does not consent, or the trial shows nothing.
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let plan = {
            let config = read(&self.config)?;
            TrialPlan::new(config.tools, config.server.max_result, self.options)?
        };
        if !self.yes {
            ask(&plan.warning())?;
        }
        let runtime = tokio::runtime::Runtime::new()?;
        // Without --json each exchange is printed at once, so that an interrupted trial has shown what it did.
        let mut held = String::new();
        let mut tell = |exchange: &str| {
            if self.json {
                held.push_str(exchange);
            } else {
                // If this fails, printing the report fails as well, and that error is returned.
                say(exchange).ok();
            }
        };
        let report = runtime.block_on(trial::verify_tool(&plan, &mut tell));
        let report = report.map_err(|why| held + &why)?;
        if self.json {
            say(&format!("{}\n", report.json()))?;
        } else {
            say(&report.text())?;
        }
        Ok(match report.end() {
            Verdict::Proved => ExitCode::SUCCESS,
            Verdict::Refuted => ExitCode::from(REFUTED),
            Verdict::NotShown => ExitCode::from(NOT_SHOWN),
        })
    }
}

/// Asks the operator at the terminal for consent.
///
/// # Errors
/// No terminal, or the answer is not "yes".
fn ask(warning: &str) -> Result<(), Failure> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        let why =
            "Nothing was sent: there is no terminal to ask at. --yes says that it may be done.";
        return Err(format!("{warning}{why}").into());
    }
    complain(format!("{warning}Type yes to go on: "));
    std::io::stderr().flush().ok();
    let mut answer = String::new();
    stdin.read_line(&mut answer)?;
    if answer.trim() == "yes" {
        return Ok(());
    }
    Err("nothing was sent".into())
}
