//! `oncegate approvals`: calls of wrapped servers that wait for approval.

use std::io::{BufRead, IsTerminal, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use clap::{Args, Subcommand};
use oncegate::app::{approval_sockets, data_folder};
use serde_json::{Value, json};

use super::{Failure, environment, say};

/// How long a wrapped server may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The options of `oncegate approvals`.
#[derive(Args)]
pub(crate) struct Approvals {
    #[command(subcommand)]
    act: Option<Act>,
}

#[derive(Subcommand)]
enum Act {
    /// Print the calls that wait, one a line. This is what no further word does.
    List,
    /// Print what would be sent of a call.
    Show { call_id: String },
    /// Print what would be sent of a call, and send exactly that after the word yes on standard input.
    Approve { call_id: String },
    /// Never send a call.
    Decline {
        call_id: String,
        /// Why, for the books.
        #[arg(long)]
        reason: String,
        /// What the agent is told.
        #[arg(long, default_value = "")]
        tell: String,
    },
    /// Print a link for a browser on this machine. It signs in once.
    Link,
}

impl Approvals {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let folder = data_folder(&environment()).ok_or("neither XDG_DATA_HOME nor HOME is set")?;
        let sockets = approval_sockets(&folder);
        // A process that was killed has left its socket.
        let answers = |asked: &Value| -> Vec<Value> {
            let all = sockets.iter();
            all.filter_map(|socket| ask(socket, asked).ok()).collect()
        };
        match self.act.unwrap_or(Act::List) {
            Act::List => {
                let all = answers(&json!({ "act": "list" }));
                if all.is_empty() {
                    return Err("no server runs behind oncegate wrap --approve".into());
                }
                let calls = all
                    .iter()
                    .filter_map(|one| one["calls"].as_array())
                    .flatten();
                let lines: Vec<&str> = calls.filter_map(Value::as_str).collect();
                match lines.is_empty() {
                    true => say("no call waits\n"),
                    false => say(&(lines.join("\n") + "\n")),
                }
            }
            Act::Show { call_id } => {
                let shown = of_call(&answers(&json!({ "act": "show", "call_id": call_id })))?;
                say(shown["text"].as_str().unwrap_or_default())
            }
            Act::Approve { call_id } => {
                let shown = of_call(&answers(&json!({ "act": "show", "call_id": call_id })))?;
                let Some(seen) = shown["seen"].as_str() else {
                    say(shown["text"].as_str().unwrap_or_default())?;
                    return Err("it cannot be approved".into());
                };
                say(shown["text"].as_str().unwrap_or_default())?;
                must_be_wanted()?;
                let asked = json!({ "act": "approve", "call_id": call_id, "seen": seen });
                print(&of_call(&answers(&asked))?)
            }
            Act::Decline {
                call_id,
                reason,
                tell,
            } => {
                let asked =
                    json!({ "act": "decline", "call_id": call_id, "reason": reason, "tell": tell });
                print(&of_call(&answers(&asked))?)
            }
            Act::Link => {
                let all = answers(&json!({ "act": "link" }));
                if all.is_empty() {
                    return Err("no server runs behind oncegate wrap --approve".into());
                }
                all.iter().try_for_each(print)
            }
        }
    }
}

/// Asks the user, who has read what would be sent.
fn must_be_wanted() -> Result<(), Failure> {
    if std::io::stdin().is_terminal() {
        say("\nSend exactly this? yes or no: ")?;
    }
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    match line.trim() {
        "yes" => Ok(()),
        _ => Err("not approved".into()),
    }
}

fn print(answer: &Value) -> Result<(), Failure> {
    say(&format!(
        "{}\n",
        answer["text"].as_str().unwrap_or_default()
    ))
}

/// The answer of the server that has the call; or why none has done it.
fn of_call(answers: &[Value]) -> Result<Value, Failure> {
    let done = answers.iter().find(|one| one["error"].is_null());
    if let Some(done) = done {
        return Ok(done.clone());
    }
    let why = answers.first().and_then(|one| one["error"].as_str());
    Err(why
        .unwrap_or("no server runs behind oncegate wrap --approve")
        .into())
}

/// Asks a wrapped server.
fn ask(socket: &Path, asked: &Value) -> Result<Value, Failure> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(format!("{asked}\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(serde_json::from_str(&answer)?)
}
