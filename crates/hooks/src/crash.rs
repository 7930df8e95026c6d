//! Named points at which a test ends or pauses the process.
//!
//! Without the feature `crash-points` there is nothing. With it, `FAILPOINTS` in the environment says what
//! happens, as `after_claim=2*off->1*return`: at the third time `return` ends the process at once, as a
//! loss of power would; `sleep(500)` pauses it, and `return(FILE)` pauses it until there is such a file.

/// Reads `FAILPOINTS`. Keep the answer for as long as the points are to work.
#[cfg(feature = "crash-points")]
pub fn set_up() -> impl Sized {
    fail::FailScenario::setup()
}

/// Passes the point of this name.
#[cfg(feature = "crash-points")]
pub fn point(name: &str) {
    fail::eval(name, |until| match until {
        Some(file) => {
            while !std::path::Path::new(&file).exists() {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
        None => std::process::abort(),
    });
}

#[cfg(not(feature = "crash-points"))]
pub fn point(_name: &str) {}

/// Passes a point a moment after a condition holds; never returns.
#[cfg(feature = "crash-points")]
pub async fn point_after(is_so: impl Fn() -> bool, name: &str) {
    use std::time::Duration;

    use tokio::time::sleep;

    while !is_so() {
        sleep(Duration::from_millis(1)).await;
    }
    sleep(Duration::from_millis(2)).await;
    point(name);
    std::future::pending().await
}

#[cfg(not(feature = "crash-points"))]
pub async fn point_after(_is_so: impl Fn() -> bool, _name: &str) {
    std::future::pending().await
}
