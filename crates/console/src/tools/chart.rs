//! Small charts: the last hour of a tool, as lines.

use maud::{Markup, html};

use super::samples::Rates;
use oncegate_rules::time::elapsed_ms;

/// The width of a chart: minutes.
const MINUTES: f64 = 60.0;
/// The height of a chart, in units of its own.
const HEIGHT: f64 = 20.0;

/// The value of a sample; `None`: the sample has none.
type Value = fn(&Rates) -> Option<f64>;

const CHARTS: [(&str, &str, Value); 4] = [
    ("Requests", "a minute", |rates| {
        Some(rates.requests_per_minute)
    }),
    ("Repeated, and not run", "a minute", |rates| {
        Some(rates.repeated_per_minute)
    }),
    ("Attempts that proved no execution", "a minute", |rates| {
        Some(rates.not_executed_per_minute)
    }),
    ("Mean time of an attempt", "ms", |rates| rates.mean_ms),
];

/// Every chart of a tool.
pub(crate) fn all(rates: &[Rates]) -> Markup {
    html! {
        @if rates.is_empty() {
            p.note { "Nothing yet: a sample is taken every half minute, by this process for itself." }
        } @else {
            div.charts {
                @for (name, unit, value) in CHARTS {
                    figure {
                        (line(name, unit, rates, value))
                        figcaption { (name) ": " (now_and_highest(unit, rates, value)) }
                    }
                }
            }
        }
    }
}

/// The requests of a tool as one small line.
pub(crate) fn requests(rates: &[Rates]) -> Markup {
    let (name, unit, value) = CHARTS[0];
    html! { @if !rates.is_empty() { (line(name, unit, rates, value)) } }
}

fn now_and_highest(unit: &str, rates: &[Rates], value: Value) -> String {
    let highest = rates.iter().filter_map(value).fold(0.0, f64::max);
    let newest = rates.last().and_then(value);
    let newest = newest.map_or_else(|| "none".to_owned(), number);
    format!(
        "now {newest} {unit}, at most {} in the last hour",
        number(highest)
    )
}

fn number(value: f64) -> String {
    if value < 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    }
}

fn line(name: &str, unit: &str, rates: &[Rates], value: Value) -> Markup {
    let Some(end) = rates.last().map(|rates| rates.at) else {
        return html! {};
    };
    let highest = rates.iter().filter_map(value).fold(1.0, f64::max);
    let points = rates.iter().filter_map(|rates| {
        let minutes = elapsed_ms(rates.at, end) as f64 / 60_000.0;
        let y = HEIGHT - 1.0 - value(rates)? / highest * (HEIGHT - 2.0);
        Some(format!("{:.1},{y:.1}", (MINUTES - minutes).max(0.0)))
    });
    let points: Vec<String> = points.collect();
    let label = format!("{name}: {}", now_and_highest(unit, rates, value));
    html! {
        svg.chart viewBox=(format!("0 0 {MINUTES} {HEIGHT}")) preserveAspectRatio="none" role="img" aria-label=(label) {
            polyline points=(points.join(" ")) {}
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn a_line_ends_at_the_newest_value_and_reaches_no_further_than_its_frame() {
        let at = |second| Timestamp::from_second(second).expect("a time");
        let rates = |second, requests_per_minute| Rates {
            at: at(second),
            requests_per_minute,
            repeated_per_minute: 0.0,
            not_executed_per_minute: 0.0,
            mean_ms: None,
        };
        let shown = requests(&[rates(0, 4.0), rates(3_600, 20.0), rates(3_660, 0.0)]);
        let shown = shown.into_string();
        assert!(
            shown.contains("points=\"0.0,15.4 59.0,1.0 60.0,19.0\""),
            "{shown}"
        );
        assert!(
            shown.contains("now 0.0 a minute, at most 20 in the last hour"),
            "{shown}"
        );
        assert_eq!(requests(&[]).into_string(), "");
    }
}
