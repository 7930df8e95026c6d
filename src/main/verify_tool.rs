//! `oncegate verify-tool`: read the options, ask for consent, run the trial, print.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use oncegate::app::{self, TrialOptions, TrialPlan};
use oncegate::core::trial::Verdict;

use super::{complain, read, say};

/// The exit status if a declared setting was refuted.
const REFUTED: u8 = 2;
/// The exit status if a declared setting was neither proved nor refuted.
const NOT_SHOWN: u8 = 3;

/// The command line of `verify-tool`.
#[derive(Args)]
pub(super) struct VerifyTool {
    /// The tool, as in [tools.NAME].
    name: String,
    #[arg(long)]
    config: PathBuf,
    /// A file with the arguments of a call, which is executed: a JSON object.
    #[arg(long, value_name = "FILE")]
    args: PathBuf,
    /// A file with other arguments, to see whether the tool refuses them under a used key.
    #[arg(long, value_name = "FILE")]
    other_args: Option<PathBuf>,
    /// The place of the effect's id in a result, as a JSON Pointer like /order_id.
    #[arg(long, value_name = "POINTER")]
    id: Option<String>,
    /// The place of the effect's id in a result of the compensation.
    #[arg(long, value_name = "POINTER")]
    undo_id: Option<String>,
    /// A text in the arguments that must differ for each new effect. A suffix is appended to it.
    #[arg(long, value_name = "POINTER")]
    fresh: Option<String>,
    /// The URL of a count of effects: asked by GET before and after each step. {key} is the step's key.
    #[arg(long, value_name = "URL")]
    count_url: Option<String>,
    /// The place of the count in that answer: a whole number, or a list.
    #[arg(long, value_name = "POINTER")]
    count: Option<String>,
    /// The place of the count of the compensation's effects.
    #[arg(long, value_name = "POINTER")]
    undo_count: Option<String>,
    /// How long after the first answer its key is sent once more.
    #[arg(long, value_name = "TIME", default_value = "5s")]
    after: String,
    /// How often two requests are sent at once.
    #[arg(long, value_name = "NUMBER", default_value_t = 3)]
    rounds: u32,
    /// Print one line of JSON.
    #[arg(long)]
    json: bool,
    /// Do not ask for consent.
    #[arg(long)]
    yes: bool,
}

impl VerifyTool {
    /// Runs the trial, and prints its report.
    ///
    /// # Errors
    /// It could not be begun, or it may not be, or nothing can be shown.
    pub(super) fn run(self) -> Result<ExitCode, String> {
        let text = |path: &Path| {
            std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
        };
        let config = read(&self.config)?;
        let options = TrialOptions {
            tool: self.name,
            args: text(&self.args)?,
            other_args: self.other_args.as_deref().map(text).transpose()?,
            id: self.id,
            undo_id: self.undo_id,
            fresh: self.fresh,
            count_url: self.count_url,
            count: self.count,
            undo_count: self.undo_count,
            after: self.after,
            rounds: self.rounds,
        };
        let plan = TrialPlan::new(config, options)?;
        if !self.yes {
            ask(&plan.warning())?;
        }
        let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
        // A trial that is interrupted has told what it did.
        let mut held = String::new();
        let mut tell = |exchange: &str| {
            if self.json {
                held.push_str(exchange);
            } else {
                // If this cannot be written, neither can the report, which says so.
                say(exchange).ok();
            }
        };
        let report = runtime.block_on(app::verify_tool(&plan, &mut tell));
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

/// Asks the person at the terminal.
///
/// # Errors
/// There is none, or the answer is not "yes".
fn ask(warning: &str) -> Result<(), String> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err(format!(
            "{warning}Nothing was sent: there is no terminal to ask at. --yes says that it may be done."
        ));
    }
    complain(format!("{warning}Type yes to go on: "));
    std::io::stderr().flush().ok();
    let mut answer = String::new();
    stdin
        .read_line(&mut answer)
        .map_err(|error| error.to_string())?;
    if answer.trim() == "yes" {
        return Ok(());
    }
    Err("nothing was sent".into())
}
