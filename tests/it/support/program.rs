//! An MCP server that is a program of its own, and counts its effects in a file.

use std::path::PathBuf;

use serde_json::Value;

pub struct Program {
    folder: tempfile::TempDir,
}

impl Program {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self { folder }
    }

    /// The program with its arguments.
    pub fn command(&self, era: &str) -> Vec<String> {
        let tests = std::env::current_exe().expect("a path");
        let built = tests.ancestors().nth(2).expect("a folder");
        let program = built.join("stdio_server");
        assert!(program.exists(), "cargo test builds the examples, too");
        let text = |path: PathBuf| path.to_str().expect("text").to_owned();
        vec![text(program), text(self.file()), era.into()]
    }

    /// The configuration of the server, of its tool `act`, and whatever else is said of it.
    pub fn config(&self, era: &str, more: &str) -> String {
        format!(
            "{}[tools.act]\nupstream = \"up\"\n{more}\n",
            self.upstream(era, "")
        )
    }

    /// The configuration of the server alone.
    pub fn upstream(&self, era: &str, more: &str) -> String {
        let command = Value::from(self.command(era));
        format!("[upstreams.up]\ncommand = {command}\n{more}\n")
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("effects")
    }

    /// How often it was started.
    pub fn starts(&self) -> usize {
        let starts = std::fs::read_to_string(self.file().with_extension("starts"));
        starts.unwrap_or_default().lines().count()
    }

    /// How often something was executed.
    pub fn effects(&self) -> usize {
        let effects = std::fs::read_to_string(self.file()).unwrap_or_default();
        effects.lines().count()
    }
}
