//! Forms of callers, with random changes.

use proptest::prelude::*;

use super::form;
use oncegate_fuzz::{attack, corpus};

#[test]
fn a_form_is_read_as_another_reader_reads_it_or_refused() {
    attack(&corpus("forms"), |bytes| {
        let Ok(text) = str::from_utf8(bytes) else {
            return Ok(());
        };
        let Some(ours) = form::pairs(text) else {
            return Ok(());
        };
        let theirs: Vec<(String, String)> = form_urlencoded::parse(bytes).into_owned().collect();
        prop_assert_eq!(&ours, &theirs);
        for (name, _) in &ours {
            let steps = form::steps(name);
            let (first, rest) = steps.split_first().expect("a step");
            let written = format!(
                "{first}{}",
                rest.iter()
                    .map(|step| format!("[{step}]"))
                    .collect::<String>()
            );
            prop_assert_eq!(&written, name, "no two names have the same steps");
        }
        Ok(())
    });
}
