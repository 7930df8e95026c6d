//! The table of figures, with a column for each size.

/// One row of the table.
struct Measured {
    what: String,
    unit: &'static str,
    /// Whether a higher value is better.
    is_rate: bool,
    values: Vec<f64>,
}

/// All rows, a value for each size.
#[derive(Default)]
pub(super) struct Table(Vec<Measured>);

impl Table {
    pub(super) fn add(&mut self, what: &str, unit: &'static str, value: f64) {
        let is_rate = unit.starts_with('/');
        match self.0.iter_mut().find(|row| row.what == what) {
            Some(row) => row.values.push(value),
            None => self.0.push(Measured {
                what: what.to_owned(),
                unit,
                is_rate,
                values: vec![value],
            }),
        }
    }

    pub(super) fn print(&self, store: &str, sizes: &[usize]) {
        let sizes: String = sizes.iter().map(|size| format!("{size:>18}")).collect();
        say(&format!("\n{store:38}{sizes}"));
        for row in &self.0 {
            let cost = |value: f64| {
                let (value, least) = (value.max(f64::MIN_POSITIVE), row.values[0]);
                if row.is_rate {
                    least / value
                } else {
                    value / least
                }
            };
            let values: String = row
                .values
                .iter()
                .map(|value| {
                    format!(
                        "{value:>11.*} x{:<5.2}",
                        usize::from(*value < 100.0) * 2,
                        cost(*value)
                    )
                })
                .collect();
            say(&format!("{:31}{:>7}{values}", row.what, row.unit));
        }
    }
}

pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[expect(clippy::print_stdout, reason = "that is what it is for")]
pub(super) fn say(line: &str) {
    println!("{line}");
}

/// The processor time of this process in microseconds, to a hundredth of a second.
///
/// On a busy machine it says more than the elapsed time.
pub(super) fn processor_time() -> f64 {
    processor_time_of("self")
}

/// The same of another process.
pub(super) fn processor_time_of(process: &str) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let after_name = stat.rsplit(") ").next().unwrap_or_default();
    let ticks = after_name.split(' ').skip(11).take(2);
    let ticks: f64 = ticks.filter_map(|ticks| ticks.parse::<f64>().ok()).sum();
    ticks * 10_000.0
}
