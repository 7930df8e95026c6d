//! An API's description as tables of `[tools]`: text in, text out. Opens no file and asks no server.
//!
//! Each operation is printed as a tool, or named with the reason why it cannot be one.
//!
//! ```
//! use oncegate_import::{Asked, openapi};
//!
//! let description = r#"
//! openapi: 3.1.0
//! info: { title: Shop, version: "1" }
//! servers: [{ url: "https://shop.example" }]
//! paths:
//!   /orders:
//!     post: { operationId: create_order, responses: {} }
//! "#;
//! let printed = openapi(description, &Asked::default())?;
//! assert_eq!(printed.imported, 1);
//! assert!(printed.text.contains("[tools.create_order]"));
//! # Ok::<(), String>(())
//! ```

mod address; // the URL of an operation
mod body; // the body of its request
mod credentials; // the headers with which the API lets the gateway in
mod document; // the text, and references in it
mod hints; // guesses: what may be the key, and what may undo the call
mod keys; // where the operation takes an idempotency key
mod operations; // all operations, and the chosen ones
mod parameters; // arguments in path, query and headers
mod print; // the table of a tool
mod request; // the request of an operation: all of the above together
mod schema; // schemas of a description as JSON Schema
mod text; // text for TOML
mod values; // what the schema of an argument must say

#[cfg(test)]
mod fuzz_tests;

use std::path::PathBuf;

use clap::{Args, Subcommand};

use self::document::Document;
pub use self::document::MAX_BYTES;
use self::text::line;
use oncegate_settings::{Config, Environment};

/// Most operations of a description.
const MAX_OPERATIONS: usize = 30_000;

/// The kind of description.
#[derive(Debug, Subcommand)]
pub enum From {
    /// Print the operations of an OpenAPI description (3.0 or 3.1, YAML or JSON) as tools. Operations that
    /// cannot be tools are named with the reason, there and on standard error.
    Openapi {
        file: PathBuf,
        #[command(flatten)]
        asked: Asked,
    },
}

/// Which operations to print, and how.
#[derive(Debug, Default, Clone, Args)]
pub struct Asked {
    /// An operationId, the name of a tool, or "GET /path"; may be given several times. Default: all operations.
    #[arg(long = "operation", value_name = "ID")]
    pub operations: Vec<String>,
    /// The operations with this tag, too; may be given several times.
    #[arg(long = "tag", value_name = "TAG")]
    pub tags: Vec<String>,
    /// The address of the API, instead of the description's.
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
}

/// The result of an import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Printed {
    /// The tools, as TOML.
    pub text: String,
    /// Sentences about parts that are left out, and about operations that are not tools.
    pub remarks: Vec<String>,
    /// How many operations became tools.
    pub imported: usize,
}

/// Prints the tools of a description in JSON or YAML.
///
/// # Errors
/// Says why the description cannot be read, or which operation or tag it does not have.
pub fn openapi(text: &str, asked: &Asked) -> Result<Printed, String> {
    let document = Document::read(text)?;
    let (all, unread) = operations::list(&document);
    if all.len() > MAX_OPERATIONS {
        return Err(format!(
            "the description has more than {MAX_OPERATIONS} operations, which is the most that is read"
        ));
    }
    let chosen = operations::choose(&all, &asked.operations, &asked.tags)?;
    let is_whole = chosen.len() == all.len();
    let (mut tools, mut remarks, mut refused) = (Vec::new(), Vec::new(), Vec::new());
    refused.extend(unread.iter().filter(|_| is_whole).map(|what| line(what)));
    for operation in chosen {
        let printed = request::of(&document, operation, asked.server.as_deref());
        let printed = printed.and_then(|request| {
            let table = print::tool(&document, &all, operation, &request);
            check(&table)?;
            Ok((table, request.notes))
        });
        match printed {
            Ok((table, notes)) => {
                let notes = notes.iter();
                remarks.extend(notes.map(|what| line(&format!("{}: {what}", operation.name))));
                tools.push(table);
            }
            Err(why) => refused.push(line(&format!("{}: {why}", operation.title()))),
        }
    }
    remarks.extend(refused.iter().map(|what| format!("not imported: {what}")));
    Ok(Printed {
        text: page(&document, &tools, &refused),
        remarks,
        imported: tools.len(),
    })
}

/// Reads a table as a configuration.
///
/// # Errors
/// The first mistake in it.
fn check(table: &str) -> Result<(), String> {
    let whole = format!("[store]\nurl = \"sqlite:oncegate.db\"\n{table}");
    let mistakes = Config::<()>::read(&whole, &Environment::default()).err();
    match mistakes.as_ref().and_then(|mistakes| mistakes.first()) {
        Some(first) => Err(format!("`oncegate check` would refuse it: {first}")),
        None => Ok(()),
    }
}

fn page(document: &Document, tools: &[String], refused: &[String]) -> String {
    let info = |word: &str| line(document.info(word));
    let mut page = format!(
        "# {} of {} operations of {:?} {}.\n",
        tools.len(),
        tools.len() + refused.len(),
        info("title"),
        info("version")
    );
    page.push_str(TO_DECIDE);
    if credentials::schemes(document).next().is_none() {
        page.push_str("# Of credentials the description says nothing.\n");
    }
    page.extend(tools.iter().map(|tool| format!("\n{tool}")));
    if !refused.is_empty() {
        page.push_str("\n# Not imported:\n");
    }
    page.extend(refused.iter().map(|what| format!("#   {what}\n")));
    page
}

/// Explains the settings that an operator decides. They are the same for each tool.
const TO_DECIDE: &str = "#
# A line that begins with \"# NAME =\" is a guess. Take its # away where an operator has found it right:
#   headers       credentials; set the variable in the environment
#   key           the arguments that name one intent: calls with the same ones are one. Without it all arguments do
#   compensation  how a call is undone; arguments from /args or /result
#   dedup         only if the API executes one key at most once: `oncegate verify-tool` asks it. With it, unknown = \"retry\"
#                 may send a call again whose outcome is unknown
#   key_header    the header that has the key
# A key_header or key_body without a # is chosen by its name, and a GET is taken for a read: look at these, too.
# The rest is as the description says; NOTE says what is left out, or not so.
";
