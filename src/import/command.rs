//! What the command line says of a description.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// What is imported.
#[derive(Debug, Subcommand)]
pub enum From {
    /// Print the operations of an OpenAPI description (3.0 or 3.1, YAML or JSON) as tools. What cannot be one is named with
    /// its reason, there and on standard error.
    Openapi {
        file: PathBuf,
        #[command(flatten)]
        asked: Asked,
    },
}

/// What is printed of it.
#[derive(Debug, Default, Clone, Args)]
pub struct Asked {
    /// An operationId, the name of a tool, or "GET /path"; may be given several times. Default: all operations.
    #[arg(long = "operation", value_name = "ID")]
    pub operations: Vec<String>,
    /// The operations with this tag, too; may be given several times.
    #[arg(long = "tag", value_name = "TAG")]
    pub tags: Vec<String>,
    /// The address of the API, instead of what the description says.
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
}
