//! The command line of `oncegate import`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

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
