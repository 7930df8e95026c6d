//! `oncegate check`: every mistake of a configuration, and what a reload of it would change.

mod observed; // timeouts beside the calls that a gateway has seen

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use oncegate::app;
use oncegate::config::Config;
use oncegate::gateway;
use reqwest::Url;
use serde_json::json;

use super::{Failure, environment, read, read_lines, say};

/// The command line of `check`.
#[derive(Args)]
pub(super) struct Check {
    #[arg(long)]
    config: PathBuf,
    /// Print one object of JSON, also where there are mistakes.
    #[arg(long)]
    json: bool,
    /// The configuration that runs now: say which settings differ, those that decide which calls are the same first, and
    /// which of them take a restart.
    #[arg(long)]
    diff: Option<PathBuf>,
    /// The address of a gateway, as in http://127.0.0.1:8080: compare each tool's timeout with its newest calls there.
    /// The token, which needs the scope read, comes from the variable ONCEGATE_TOKEN.
    #[arg(long)]
    calls: Option<Url>,
    /// Print what the profile of each proxy presets, and what the file says otherwise.
    #[arg(long)]
    expand: bool,
}

impl Check {
    /// Checks, and prints what was found.
    ///
    /// # Errors
    /// Every mistake.
    pub(super) fn run(self) -> Result<(), Failure> {
        if self.json {
            return self.run_in_json();
        }
        let config = read(&self.config)?;
        let mut out = String::new();
        for warning in config.warnings_at(gateway::local_time()) {
            writeln!(out, "warning: {warning}")?;
        }
        for note in &config.notes {
            writeln!(out, "note: {note}")?;
        }
        if let Some(old) = &self.diff {
            for change in changes(&read(old)?, &config) {
                writeln!(out, "{change}")?;
            }
        }
        for warning in self.observed(&config)? {
            writeln!(out, "warning: {warning}")?;
        }
        if self.expand {
            out.push_str(&expanded(&config));
        }
        let (memory, tools, tokens) = (config.memory(), &config.tools, &config.tokens);
        let (tools, tokens) = (tools.len(), tokens.len());
        writeln!(out, "{memory}\nok: {tools} tools, {tokens} tokens")?;
        say(&out)
    }

    /// What the calls of a gateway say of the timeouts.
    fn observed(&self, config: &Config) -> Result<Vec<String>, Failure> {
        let Some(gateway) = &self.calls else {
            return Ok(Vec::new());
        };
        let token = environment().remove("ONCEGATE_TOKEN");
        Ok(observed::warnings(
            gateway,
            token.as_deref(),
            &config.tools,
        )?)
    }

    fn run_in_json(self) -> Result<(), Failure> {
        let read = read_lines(&self.config).and_then(|config| {
            let old = self.diff.as_deref().map(read_lines).transpose()?;
            Ok((config, old))
        });
        let (config, old) = match read {
            Ok(both) => both,
            Err(mistakes) => {
                say(&format!(
                    "{}\n",
                    json!({ "ok": false, "mistakes": mistakes })
                ))?;
                return Err(format!("mistakes: {}", mistakes.len()).into());
            }
        };
        let mut warnings = config.warnings_at(gateway::local_time());
        warnings.extend(self.observed(&config)?);
        let changes = old.map(|old| changes(&old, &config));
        let found = json!({
            "ok": true,
            "mistakes": [],
            "warnings": warnings,
            "notes": config.notes,
            "tools": config.tools.len(),
            "tokens": config.tokens.len(),
            "changes": changes,
        });
        say(&format!("{found}\n"))
    }
}

/// The settings that profiles preset, as TOML.
#[cfg(feature = "proxy")]
fn expanded(config: &Config) -> String {
    use oncegate::proxy::profiles;

    let mut out = String::new();
    for at in &config.tools {
        let profile = at.tool.proxy().and_then(|policy| policy.profile.as_ref());
        let Some((profile, row)) = profile.and_then(|of| Some((of, profiles::row(of)?))) else {
            continue;
        };
        let section = format!("proxies.{}", at.tool.name);
        out += &format!("[{section}]\nprofile = \"{profile}\"\n");
        for line in row.lines() {
            let key = line.split(' ').next().unwrap_or_default();
            out += &match config.written.has(&format!("{section}.{key}")) {
                true => format!("# {line}: the file has its own\n"),
                false => format!("{line}\n"),
            };
        }
    }
    out
}

#[cfg(not(feature = "proxy"))]
fn expanded(_: &Config) -> String {
    String::new()
}

/// What differs, each in a line: first what decides which calls are the same.
fn changes(old: &Config, new: &Config) -> Vec<String> {
    let differing = new.written.differing(&old.written);
    let is_of_keys = |setting: &&&str| {
        let of_tool = setting.starts_with("tools.") || setting.starts_with("proxies.");
        let parts = [
            ".key.",
            ".key",
            ".redact",
            ".dedup_window",
            ".derived_window",
            ".compare",
            ".expired",
            ".profile",
            ".retention",
        ];
        of_tool && parts.iter().any(|part| setting.contains(part))
    };
    let (keys, others): (Vec<&&str>, Vec<&&str>) = differing.iter().partition(is_of_keys);
    let line = |setting: &str| match app::takes_restart(setting, new) {
        true => format!("change: {setting} (takes a restart)"),
        false => format!("change: {setting}"),
    };
    let keys = keys.into_iter().map(|setting| {
        format!("{}: which calls are the same, or for how long; calls that are remembered keep their own", line(setting))
    });
    keys.chain(others.into_iter().map(|setting| line(setting)))
        .collect()
}
