//! One act of an operator on many anomalies: a dry run first, with sums of what the sources show, then, confirmed, the act.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use jiff::Timestamp;
use serde_json::Value;

use super::anomaly_worker::AT_ONCE;
use super::service::Reconciler;
use super::settings::Reconciliation;
use crate::rules::Kind;
use crate::rules::anomaly::{self, Acted, Case, Event, Illegal, Listed, Request, State};
use oncegate_engine::wings::{Documents, must_be_admin, recorded_to_its_end, unavailable};
use oncegate_engine::{Error, ErrorKind};
use oncegate_rules::audit::{Act, Target};
use oncegate_rules::caller::Caller;
use oncegate_rules::document::Kind as DocumentKind;
use oncegate_rules::many::{SAMPLE, SeenVersion, Summary};
use oncegate_store::{self as store, Put};

/// The states in which nothing is done about an anomaly yet, or any more.
const ACTED_ON: [State; 2] = [State::Reported, State::GivenUp];
/// Decimal places of a sum.
const PLACES: u32 = 9;

/// The anomalies of an act: all of one kind, perhaps only of one run, or of effects that were made in a time.
#[derive(Debug, Clone)]
pub struct ManyAnomalies {
    pub kind: Kind,
    /// The run that has found them first.
    pub run: Option<String>,
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
}

/// The answer to a dry run. Nothing was changed.
#[derive(Debug)]
pub struct Found {
    pub summary: Summary,
    /// How many of them would refuse the act as they are now.
    pub refused: usize,
    /// By pointer of `show`.
    pub sums: BTreeMap<String, Sum>,
    /// The newest of them.
    pub sample: Vec<Listed>,
}

/// The sum of a shown value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sum {
    scaled: i128,
    /// How many anomalies have no number there.
    pub without: usize,
    with: usize,
}

/// How many anomalies had which result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AskedFor {
    /// It is written down, and a worker does it.
    pub asked: usize,
    /// It has changed since, and was not touched.
    pub changed: usize,
    pub refused: usize,
    /// The store did not answer: it is written down or not.
    pub unclear: usize,
}

/// One target: its id and the version that was seen.
type Item = (String, u64);

impl ManyAnomalies {
    fn has(&self, case: &Case) -> bool {
        let made_at = case
            .listed
            .made_at
            .and_then(|at| Timestamp::from_microsecond(at).ok());
        let is_in = |holds: &dyn Fn(Timestamp) -> bool| made_at.is_some_and(holds);
        case.listed.kind == self.kind
            && self.run.as_ref().is_none_or(|run| *run == case.run)
            && self.since.is_none_or(|since| is_in(&|at| at >= since))
            && self.until.is_none_or(|until| is_in(&|at| at < until))
    }
}

impl Sum {
    fn add(&mut self, value: Option<&Value>) {
        let number = match value {
            Some(Value::Number(number)) => scaled(&number.to_string()),
            Some(Value::String(text)) => scaled(text),
            _ => None,
        };
        let sum = number.and_then(|number| self.scaled.checked_add(number));
        match sum {
            Some(sum) => {
                self.scaled = sum;
                self.with += 1;
            }
            None => self.without += 1,
        }
    }

    /// The sum in decimal digits.
    pub fn text(&self) -> String {
        let one = 10_i128.pow(PLACES);
        let (whole, part) = (self.scaled.abs() / one, self.scaled.abs() % one);
        let sign = if self.scaled < 0 { "-" } else { "" };
        let text = format!("{sign}{whole}.{part:09}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}

/// A number in decimal digits as billionths, exactly; `None`: it is not one, or has more places.
fn scaled(text: &str) -> Option<i128> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text),
    };
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let places = u32::try_from(part.len()).ok()?;
    if whole.is_empty() || !is_digits(whole) || !is_digits(part) || places > PLACES {
        return None;
    }
    let number: i128 = format!("{whole}{part}").parse().ok()?;
    number
        .checked_mul(10_i128.pow(PLACES - places))?
        .checked_mul(sign)
}

impl Reconciler {
    /// Finds the anomalies that would be undone. Changes nothing.
    ///
    /// # Errors
    /// The caller is not an administrator, the reconciliation does not exist, there are too many, or the store does not
    /// answer.
    pub async fn try_to_compensate(
        &self,
        caller: &Caller,
        name: &str,
        many: &ManyAnomalies,
    ) -> Result<Found, Error> {
        must_be_admin(caller)?;
        let of = self.reconciliation(name)?;
        Ok(self.find(&of, many).await?.1)
    }

    /// Asks for the compensation of the anomalies that were confirmed.
    ///
    /// Each request is written down before the work, which workers do. It goes on if the caller hangs up; an anomaly that
    /// has changed meanwhile is not touched.
    ///
    /// # Errors
    /// As [`try_to_compensate`](Self::try_to_compensate); or the anomalies are not those that were confirmed. Then
    /// nothing is done.
    pub async fn compensate_many(
        self: &Arc<Self>,
        caller: &Caller,
        name: &str,
        many: ManyAnomalies,
        reason: &str,
        confirmed: Summary,
    ) -> Result<(Found, AskedFor), Error> {
        must_be_admin(caller)?;
        let of = self.reconciliation(name)?;
        let (count, kind) = (confirmed.count, many.kind);
        let about = format!("{reason} ({count} anomalies: {kind})");
        let target = Target::Reconciliation(name.to_owned());
        let act = Act::new(caller, Request::Compensate.into(), "", target, &about);
        let acted = Acted {
            act: Request::Compensate,
            by: caller.name.clone(),
            reason: reason.to_owned(),
            at: self.base.now().as_microsecond(),
        };
        let reconciler = self.clone();
        let asking = async move {
            let (items, found) = reconciler.find(&of, &many).await?;
            if let Err(different) = found.summary.confirm(&confirmed) {
                return Err(ErrorKind::NotConfirmed(different).alone());
            }
            let asks = items.into_iter();
            let asks = asks.map(|item| reconciler.ask_for(&of, item, &acted));
            let asks: Vec<_> = asks.collect();
            let mut asks = stream::iter(asks).buffer_unordered(AT_ONCE);
            let mut became = AskedFor::default();
            while let Some(one) = asks.next().await {
                became.count(one);
            }
            drop(asks);
            Ok((found, became))
        };
        recorded_to_its_end(&self.base, act, asking).await
    }

    async fn find(
        &self,
        of: &Reconciliation,
        many: &ManyAnomalies,
    ) -> Result<(Vec<Item>, Found), Error> {
        // A page of anomalies may hold many items of sources.
        let _permit = self.permits.acquire().await;
        let most = self.base.limits.timings.most_targets;
        let (mut items, mut newest) = (Vec::new(), Vec::new());
        let mut refused = 0;
        let mut sums: BTreeMap<String, Sum> = BTreeMap::new();
        for state in ACTED_ON {
            let mut pages = Documents::new(DocumentKind::Anomaly, state.as_str());
            while let Some(page) = pages.next(&self.base).await.map_err(unavailable)? {
                if self.base.draining.is_cancelled() {
                    return Err(ErrorKind::ShuttingDown.alone());
                }
                let cases = page.iter().filter_map(Case::from_document);
                for case in cases.filter(|case| case.reconciliation == of.name && many.has(case)) {
                    if items.len() >= most {
                        let why = format!(
                            "there are more than {most}, which is the most for one act; name a run, or since and until"
                        );
                        return Err(ErrorKind::InvalidRequest(why).alone());
                    }
                    refused += usize::from(!case.requests().contains(&Request::Compensate));
                    for pointer in &of.show {
                        let pointer = pointer.as_str();
                        let sum = sums.entry(pointer.to_owned()).or_default();
                        sum.add(case.listed.shown.get(pointer));
                    }
                    items.push((case.listed.id.clone(), case.version));
                    newest.push((case.created_at, case.listed_now(false)));
                    newest.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
                    newest.truncate(SAMPLE);
                }
            }
        }
        sums.retain(|_, sum| sum.with > 0);
        let act = [
            "compensate",
            "anomalies",
            of.name.as_str(),
            many.kind.as_str(),
        ];
        let targets = items.iter();
        let targets = targets.map(|(id, version)| (id.clone(), SeenVersion::of_document(*version)));
        let found = Found {
            summary: Summary::of(&act, targets.collect()),
            refused,
            sums,
            sample: newest.into_iter().map(|(_, listed)| listed).collect(),
        };
        Ok((items, found))
    }

    async fn ask_for(
        &self,
        of: &Reconciliation,
        (id, version): Item,
        acted: &Acted,
    ) -> Result<Did, store::Error> {
        let found = self.anomalies.document(&id).await?;
        let case = found.as_ref().and_then(Case::from_document);
        let Some(case) = case.filter(|case| case.version == version) else {
            return Ok(Did::Changed);
        };
        let event = Event::Asked {
            acted: acted.clone(),
            is_lost: self.anomalies.is_lost(&case).await?,
        };
        match anomaly::next(&case, &event, of.anomaly_retention, self.base.now()) {
            Ok(case) => match self.base.store.put_document(&case.to_document()).await? {
                Put::Done => Ok(Did::Asked),
                Put::Lost(_) => Ok(Did::Changed),
            },
            Err(Illegal::Unchanged | Illegal::NotDue) => Ok(Did::Changed),
            Err(Illegal::Contrary(_)) => Ok(Did::Refused),
        }
    }
}

/// What has become of one target.
enum Did {
    Asked,
    Changed,
    Refused,
}

impl AskedFor {
    fn count(&mut self, did: Result<Did, store::Error>) {
        *match did {
            Ok(Did::Asked) => &mut self.asked,
            Ok(Did::Changed) => &mut self.changed,
            Ok(Did::Refused) => &mut self.refused,
            Err(_) => &mut self.unclear,
        } += 1;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sums_are_exact_and_say_how_many_have_no_number() {
        let mut sum = Sum::default();
        for value in [json!(0.1), json!(0.2), json!("999.99"), json!(-1)] {
            sum.add(Some(&value));
        }
        assert_eq!((sum.text().as_str(), sum.without), ("999.29", 0));
        for value in [
            json!("1e3"),
            json!(null),
            json!("[redacted]"),
            json!("1.0000000001"),
        ] {
            sum.add(Some(&value));
        }
        sum.add(None);
        assert_eq!((sum.text().as_str(), sum.without), ("999.29", 5));
        let mut large = Sum::default();
        for _ in 0..10_000 {
            large.add(Some(&json!(u64::MAX)));
        }
        assert_eq!(large.text(), "184467440737095516150000");
        assert_eq!(Sum::default().text(), "0");
    }
}
