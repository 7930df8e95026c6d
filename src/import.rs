//! An API's description as tables of `[tools]`: text in, text out. It opens no file and asks no server.
//!
//! Each operation is printed as a tool or named with the reason why it is none.

mod address; // its URL
mod body; // the body of its request
mod command; // what the command line says
mod credentials; // what lets the gateway in
mod document; // the text, and references in it
mod hints; // what may be its key, and what may undo it
mod keys; // where it takes an idempotency key
mod operations; // what there is, and what is asked for
mod parameters; // what goes into path, query and headers
mod print; // the table of a tool
mod request; // all of that together
mod schema; // schemas of a description as JSON Schema
mod text; // text for TOML
mod values; // what the schema of an argument must say

#[cfg(test)]
mod fuzz_tests;

pub use self::command::{Asked, From};
use self::document::Document;
pub use self::document::MAX_BYTES;
use self::operations::Operation;
use self::print::Guesses;
use self::text::line;
use crate::config::{Config, Environment};

/// Most operations of a description.
const MAX_OPERATIONS: usize = 30_000;

/// The result of an import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Printed {
    /// The tools, as TOML.
    pub text: String,
    /// Sentences about left-out parts, and about operations that are no tools.
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
        match request::of(&document, operation, asked.server.as_deref()) {
            Ok(request) => {
                let guesses = guesses(&document, &all, operation, &request);
                let table = print::tool(operation, &request, &guesses);
                if let Some(mistake) = mistake(&table) {
                    refused.push(line(&format!("{}: {mistake}", operation.title())));
                    continue;
                }
                let told = request.told.iter();
                remarks.extend(told.map(|what| line(&format!("{}: {what}", operation.name))));
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

/// The mistake that the reader of configurations would find in a table.
fn mistake(table: &str) -> Option<String> {
    let whole = format!("[store]\nurl = \"sqlite:oncegate.db\"\n{table}");
    let mistakes = Config::read(&whole, &Environment::default()).err()?;
    let first = mistakes.first()?;
    Some(format!("`oncegate check` would refuse it: {first}"))
}

fn guesses(
    document: &Document,
    all: &[Operation<'_>],
    operation: &Operation<'_>,
    request: &request::Request,
) -> Guesses {
    let credentials = credentials::of(document, operation);
    if operation.method == "GET" {
        return Guesses {
            credentials,
            ..Guesses::default()
        };
    }
    Guesses {
        credentials,
        key_fields: hints::key_fields(operation, request),
        compensation: hints::compensation(all, operation, request),
    }
}

fn page(document: &Document, tools: &[String], refused: &[String]) -> String {
    let info = |word: &str| {
        let info = document.root().get("info");
        let text = info.and_then(|info| info.get(word)?.as_str());
        line(text.unwrap_or_default())
    };
    let mut page = format!(
        "# {} of {} operations of {:?} {}.\n",
        tools.len(),
        tools.len() + refused.len(),
        info("title"),
        info("version")
    );
    page.push_str(TO_DECIDE);
    if !credentials::are_said(document) {
        page.push_str("# Of credentials the description says nothing.\n");
    }
    for tool in tools {
        page.push('\n');
        page.push_str(tool);
    }
    if !refused.is_empty() {
        page.push_str("\n# Not imported:\n");
    }
    for what in refused {
        page.push_str(&format!("#   {what}\n"));
    }
    page
}

/// The settings that are the same for each tool.
const TO_DECIDE: &str = "#
# A line that begins with \"# NAME =\" is a guess. Take its # away where a person has found it right:
#   headers       credentials; set the variable in the environment
#   key           the arguments that name one intent: calls with the same ones are one. Without it all arguments do
#   compensation  how a call is undone; arguments from /args or /result
#   dedup         only if the API executes one key at most once: `oncegate verify-tool` asks it. With it, unknown = \"retry\"
#                 may send a call again whose outcome is unknown
#   key_header    the header that has the key
# A key_header or key_body without a # is chosen by its name, and a GET is taken for a read: look at these, too.
# The rest is as the description says; NOTE says what is left out, or not so.
";
