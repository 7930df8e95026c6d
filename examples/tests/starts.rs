//! Each example starts, and says what it takes. `cargo test` builds the examples because this file names them: tests of the
//! gateway start them as processes.

#![expect(clippy::expect_used, reason = "a helper that fails fails the test")]

use std::process::Command;

fn help_of(program: &str) -> String {
    let output = Command::new(program).arg("--help").output();
    let output = output.expect("the example starts");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn the_demo_shop_takes_an_address_and_a_file() {
    let help = help_of(env!("CARGO_BIN_EXE_shop"));
    assert!(help.contains("--listen") && help.contains("--db"), "{help}");
}

#[test]
fn the_service_that_was_built_to_be_asked_takes_an_address_and_a_file() {
    let help = help_of(env!("CARGO_BIN_EXE_orders"));
    assert!(help.contains("--listen") && help.contains("--db"), "{help}");
}

#[test]
fn the_programs_of_make_loss_name_their_parts() {
    let help = help_of(env!("CARGO_BIN_EXE_loss"));
    assert!(help.contains("tool") && help.contains("ask"), "{help}");
}
