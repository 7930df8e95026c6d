//! Configurations with random changes.

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::*;
use oncegate_fuzz::{attack, corpus};

#[test]
fn a_configuration_is_read_or_its_mistakes_are_placed_in_it() {
    attack(&corpus("config"), |bytes| {
        let text = String::from_utf8_lossy(bytes);
        let Err(mistakes) = Config::<()>::read(&text, &Environment::new()) else {
            return Ok(());
        };
        prop_assert!(!mistakes.is_empty(), "a refusal says why");
        let lines = text.split('\n').count();
        for mistake in &mistakes {
            prop_assert!(!mistake.message.is_empty());
            let Place::File { line, column } = mistake.place else {
                return Err(TestCaseError::fail("no variable is set"));
            };
            prop_assert!((1..=lines).contains(&line) && column > 0, "{mistake}");
        }
        let again = Config::<()>::read(&text, &Environment::new()).expect_err("the same");
        prop_assert_eq!(again, mistakes);
        Ok(())
    });
}
