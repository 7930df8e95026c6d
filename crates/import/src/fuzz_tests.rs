//! Descriptions of APIs with random changes.

use proptest::prelude::*;

use super::*;
use oncegate_fuzz::{attack, corpus};

#[test]
fn a_description_is_refused_or_its_tools_are_a_configuration() {
    attack(&corpus("openapi"), |bytes| {
        let text = String::from_utf8_lossy(bytes);
        let Ok(printed) = openapi(&text, &Asked::default()) else {
            return Ok(());
        };
        prop_assert!(printed.remarks.iter().all(|remark| !remark.contains('\n')));
        let read = toml::from_str::<toml::Table>(&printed.text);
        prop_assert!(read.is_ok(), "{}", printed.text);
        Ok(())
    });
}
