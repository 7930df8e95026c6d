//! The requests of a trial, step by step. Each is sent once, by the same sender as calls.

use std::time::Duration;

use reqwest::Method;
use serde_json::Value;
use tokio::time::{Instant, sleep, sleep_until};

use super::plan::{Intent, TrialPlan, find, place, texts};
use super::report::{COUNT, Exchanged, listed, printable};
use super::secrets::hide;

use crate::core::compensation::{Policy, Template};
use crate::core::evidence::{Body, Evidence, Sent};
use crate::core::trial::{Naming, Other, Probed, Round, Seen, Step, Trial, Undone, undoing};
use crate::core::{outcome, redact, unknown};
use crate::downstream::{Client, Deadline, Downstream, Exchange, Party, Request};
use crate::gateway::{ToolAt, ToolRequest, probe_url};

/// How often a refused repetition is sent again, and after which wait.
///
/// The first request may still be under way.
const SETTLE: u32 = 4;
const SETTLE_WAIT: Duration = Duration::from_millis(500);
/// How long to wait for an operator's count.
const COUNT_TIMEOUT: Duration = Duration::from_secs(10);
/// The tenant of a trial: no call of a tenant shares a connection with it.
const TENANT: &str = "oncegate-verify-tool";

/// Which count of effects to read.
#[derive(Clone, Copy)]
enum Of {
    Effects,
    Undone,
}

/// Sends the requests of a trial.
pub(super) struct Asker<'a> {
    plan: &'a TrialPlan,
    at: &'a ToolAt,
    downstream: Downstream,
    exchanges: Vec<Exchanged>,
    tell: &'a mut dyn FnMut(&str),
}

impl<'a> Asker<'a> {
    /// `tell` gets each exchange as it comes, as lines.
    pub(super) fn new(
        plan: &'a TrialPlan,
        at: &'a ToolAt,
        downstream: Downstream,
        tell: &'a mut dyn FnMut(&str),
    ) -> Self {
        Self {
            plan,
            at,
            downstream,
            exchanges: Vec::new(),
            tell,
        }
    }

    fn note(&mut self, exchanged: Exchanged) {
        (self.tell)(&listed(&exchanged));
        self.exchanges.push(exchanged);
    }

    /// The exchanges of the trial. Nothing is sent after this.
    pub(super) async fn end(self) -> Vec<Exchanged> {
        self.downstream.close().await;
        self.exchanges
    }

    /// Runs all steps.
    ///
    /// # Errors
    /// The first request had no effect, or a count cannot be read: then nothing can be shown.
    pub(super) async fn trial(&mut self) -> Result<Trial, String> {
        let (plan, at) = (self.plan, self.at);
        let intent = plan.intent(&plan.args);
        let before = self.count(Of::Effects, &intent).await?;
        let seen = self.send(at, "first", &intent).await;
        if !seen.is_executed() {
            return Err(format!(
                "nothing can be shown: the first request has to be executed, but {}",
                seen.why
            ));
        }
        let due = Instant::now() + plan.after;
        let after = self.count(Of::Effects, &intent).await?;
        let first = Step {
            seen: vec![seen],
            change: change(before, after),
        };
        let again = self.repeat(at, "again", &intent, Of::Effects).await?;
        let (mut rounds, mut intents) = (Vec::new(), Vec::new());
        for _ in 0..plan.rounds {
            let intent = plan.intent(&plan.args);
            rounds.push(self.round(&intent).await?);
            intents.push(intent);
        }
        sleep_until(due).await;
        let later = self.repeat(at, "later", &intent, Of::Effects).await?;
        let mut probed = None;
        if at.has_probe() {
            probed = Some(self.probed(&intent).await);
        }
        let mut other = None;
        if let Some(args) = &plan.other_args {
            other = Some(self.other(&intent, args).await?);
        }
        let mut undone = None;
        if let Policy::By(template) = &at.tool.compensation {
            let second = intents
                .first()
                .zip(rounds.first().and_then(|round| round.step.seen.first()));
            let first = first.seen.first().map(|seen| (&intent, seen));
            undone = match first {
                Some(first) => Some(self.undo(template, first, second).await?),
                None => None,
            };
        }
        Ok(Trial {
            naming: plan.naming.clone(),
            first,
            again,
            rounds,
            later,
            after: plan.after,
            other,
            probed,
            undone,
        })
    }

    /// The same request, sent again while it is refused: an earlier one may still be under way.
    async fn repeat(
        &mut self,
        at: &ToolAt,
        step: &'static str,
        intent: &Intent,
        of: Of,
    ) -> Result<Step, String> {
        let before = self.count(of, intent).await?;
        let mut seen = vec![self.send(at, step, intent).await];
        self.settle(at, intent, &mut seen).await;
        let after = self.count(of, intent).await?;
        Ok(Step {
            seen,
            change: change(before, after),
        })
    }

    /// Repeats a refused request until it gets a result. Only the last answer is kept.
    async fn settle(&mut self, at: &ToolAt, intent: &Intent, seen: &mut Vec<Seen>) {
        if !seen.iter().any(Seen::is_refused_for_now) {
            return;
        }
        let mut last = None;
        for _ in 0..SETTLE {
            sleep(SETTLE_WAIT).await;
            let settled = self.send(at, "once more", intent).await;
            let is_over = !settled.is_refused_for_now();
            last = Some(settled);
            if is_over {
                break;
            }
        }
        seen.extend(last);
    }

    /// Two requests at once under a key of their own.
    async fn round(&mut self, intent: &Intent) -> Result<Round, String> {
        let at = self.at;
        let before = self.count(Of::Effects, intent).await?;
        let (one, two) = (self.begin(at, intent)?, self.begin(at, intent)?);
        let is_sent = (one.watch_sending(), two.watch_sending());
        // The answer of the one, and whether the other was under way then.
        let one = async { (finish(at, one).await, (is_sent.1)()) };
        let two = async { (finish(at, two).await, (is_sent.0)()) };
        let ((one, beside_one), (two, beside_two)) = tokio::join!(one, two);
        let mut seen = vec![
            self.read(at, "at once", intent, one),
            self.read(at, "at once", intent, two),
        ];
        self.settle(at, intent, &mut seen).await;
        let after = self.count(Of::Effects, intent).await?;
        Ok(Round {
            step: Step {
                seen,
                change: change(before, after),
            },
            is_together: beside_one && beside_two,
        })
    }

    /// Other arguments under a used key and, if refused, under a new one.
    async fn other(&mut self, used: &Intent, args: &Value) -> Result<Other, String> {
        let at = self.at;
        let mut new = self.plan.intent(args);
        // An id that only the arguments gave tells no keys apart.
        let first = texts(&self.plan.args);
        let differing = texts(args).into_iter().filter(|text| !first.contains(text));
        new.sent.extend(differing);
        let under_used = Intent {
            args: new.args.clone(),
            ..used.clone()
        };
        let before = self.count(Of::Effects, used).await?;
        let seen = self.send(at, "other arguments", &under_used).await;
        let is_refused = seen.is_refused();
        let after = self.count(Of::Effects, used).await?;
        let under_used_key = Step {
            seen: vec![seen],
            change: change(before, after),
        };
        let mut under_new_key = None;
        if is_refused {
            under_new_key = Some(Step {
                seen: vec![self.send(at, "other arguments, new key", &new).await],
                change: None,
            });
        }
        Ok(Other {
            under_used_key,
            under_new_key,
        })
    }

    /// Undoes an effect twice, and another one once. The inner error says why nothing was sent.
    async fn undo(
        &mut self,
        template: &Template,
        first: (&Intent, &Seen),
        other: Option<(&Intent, &Seen)>,
    ) -> Result<Result<Undone, String>, String> {
        let plan = self.plan;
        let Some(by) = find(&plan.config, &template.tool) else {
            return Ok(Err(format!("there is no tool {:?}", template.tool)));
        };
        let undoing = |(of, seen): (&Intent, &Seen)| {
            let args = undoing(template, &of.args, seen, &of.key, of.call_id)?;
            let made = texts(&args);
            Ok::<_, String>(Intent::new(args.to_string().into(), made))
        };
        let intent = match undoing(first) {
            Ok(intent) => intent,
            Err(why) => return Ok(Err(format!("its arguments cannot be made: {why}"))),
        };
        let before = self.count(Of::Undone, first.0).await?;
        let seen = self.send(by, "compensation", &intent).await;
        let after = self.count(Of::Undone, first.0).await?;
        let undone = Step {
            seen: vec![seen],
            change: change(before, after),
        };
        let again = self
            .repeat(by, "compensation again", &intent, Of::Undone)
            .await?;
        let mut other_undone = None;
        if plan.undo_id.is_some()
            && let Some(Ok(intent)) = other.map(undoing)
        {
            other_undone = Some(Step {
                seen: vec![self.send(by, "compensation of another", &intent).await],
                change: None,
            });
        }
        Ok(Ok(Undone {
            naming: Naming {
                id: plan.undo_id.clone(),
                ignore: by.tool.replay_ignore.clone(),
                hidden: by.tool.redact.result.clone(),
            },
            first: undone,
            again,
            other: other_undone,
        }))
    }

    /// One request, and what its answer shows.
    async fn send(&mut self, at: &ToolAt, step: &'static str, intent: &Intent) -> Seen {
        let evidence = match self.begin(at, intent) {
            Ok(exchange) => finish(at, exchange).await,
            Err(why) => Evidence::NotSent { why },
        };
        self.read(at, step, intent, evidence)
    }

    fn begin(&self, at: &ToolAt, intent: &Intent) -> Result<Exchange, String> {
        let made = ToolRequest::new(at, &intent.args, &intent.key, intent.call_id)?;
        let request = Request {
            party: Party::tool(TENANT, &at.tool.name),
            call_id: intent.call_id,
            headers: made.headers,
            body: made.body,
            is_write: true,
            client: Client::default(),
            send_before: Deadline::after(at.tool.deadline),
        };
        Ok(self.downstream.dispatch(&made.endpoint, request))
    }

    fn read(
        &mut self,
        at: &ToolAt,
        step: &'static str,
        intent: &Intent,
        evidence: Evidence,
    ) -> Seen {
        let (outcome, why) = outcome::classify(&at.tool, &evidence, Sent::default());
        let answer = match &evidence {
            Evidence::Answer { body, .. } => body_of(at, body),
            Evidence::NotSent { why } | Evidence::NoAnswer { why } | Evidence::Lost { why } => {
                hide(at, why)
            }
            Evidence::Mcp(answer) => body_of(at, &answer.body),
        };
        self.note(Exchanged {
            step,
            method: at.endpoint.method.to_string(),
            url: place(&at.endpoint.url),
            key: Some(intent.key.clone()),
            sent: Some(printable(&redact::mask(&intent.args, &at.tool.redact.args))),
            status: evidence.status(),
            answer,
        });
        Seen {
            sent: intent.sent.clone(),
            status: evidence.status(),
            outcome,
            why,
        }
    }

    async fn probe(&mut self, intent: &Intent) -> unknown::Finding {
        let at = self.at;
        let by = Instant::now() + at.tool.timeout;
        let party = Party::tool(TENANT, &at.tool.name);
        // What is not kept of a call is not there for its probe.
        let kept = redact::mask(&intent.args, &at.tool.redact.args);
        let asked = match probe_url(&at.tool, &kept, &intent.key) {
            Ok(url) => self.downstream.probe(&at.endpoint, party, &url, by).await,
            Err(why) => Err(why),
        };
        let (status, answer, finding) = match asked {
            Ok((status, body, _)) => {
                let finding = unknown::read_probe(&at.tool, status, &body);
                (Some(status), body_of(at, &body), finding)
            }
            Err(why) => (None, hide(at, &why), unknown::Finding::Unclear(why)),
        };
        let url = at.endpoint.probe.as_ref();
        self.note(Exchanged {
            step: "probe",
            method: Method::GET.to_string(),
            url: url.map_or_else(String::new, place),
            key: Some(intent.key.clone()),
            sent: None,
            status,
            answer,
        });
        finding
    }

    /// Probes for a key that was never sent, and for a sent one.
    async fn probed(&mut self, used: &Intent) -> Probed {
        let plan = self.plan;
        let target = self.at.tool.probe.as_ref();
        let is_told_apart = target.is_some_and(|target| {
            let fresh = plan.fresh.as_ref();
            let has_fresh = fresh.is_some_and(|at| target.used().any(|used| used.holds(at)));
            target.has_key() || has_fresh
        });
        let unused = if is_told_apart {
            self.probe(&plan.intent(&plan.args)).await
        } else {
            let why = "it asks by arguments that all calls of the trial have in common: name one with --fresh";
            unknown::Finding::Unclear(why.into())
        };
        Probed {
            unused,
            used: self.probe(used).await,
        }
    }

    /// The operator's count now; `None`: there is none.
    ///
    /// # Errors
    /// It cannot be read.
    async fn count(&mut self, of: Of, intent: &Intent) -> Result<Option<i64>, String> {
        let Some(count) = &self.plan.count else {
            return Ok(None);
        };
        let at = match of {
            Of::Effects => &count.at,
            Of::Undone => &count.at_undone,
        };
        let Some(at) = at else {
            return Ok(None);
        };
        let by = Instant::now() + COUNT_TIMEOUT;
        let party = Party::tool(TENANT, "count");
        let url = count.url.replace("{key}", &intent.key);
        let asked = self
            .downstream
            .probe(&count.endpoint, party, &url, by)
            .await;
        let failed = |why: String| format!("nothing can be shown: the count cannot be read: {why}");
        let (status, body, _) = asked.map_err(failed)?;
        let Body::Whole(bytes) = &body else {
            return Err(failed("its answer did not come whole".into()));
        };
        let answer = serde_json::from_slice::<Value>(bytes).ok();
        let counted = match answer.as_ref().and_then(|all| all.pointer(at.as_str())) {
            Some(Value::Array(items)) => i64::try_from(items.len()).ok(),
            Some(number) => number.as_i64(),
            None => None,
        };
        let counted = counted.filter(|_| status == 200).ok_or_else(|| {
            failed(format!(
                "it answered {status}, without a whole number or a list at {}",
                at.as_str()
            ))
        })?;
        self.note(Exchanged {
            step: COUNT,
            method: Method::GET.to_string(),
            url: place(&count.endpoint.url),
            key: None,
            sent: None,
            status: Some(status),
            answer: format!("{} is {counted}", at.as_str()),
        });
        Ok(Some(counted))
    }
}

fn change(before: Option<i64>, after: Option<i64>) -> Option<i64> {
    after?.checked_sub(before?)
}

/// Waits for the answer as long as a call would.
async fn finish(at: &ToolAt, mut exchange: Exchange) -> Evidence {
    let now = Instant::now();
    let (head_by, body_by) = (now + at.tool.timeout, now + at.tool.deadline);
    let evidence = exchange.until(head_by, body_by).await;
    evidence.unwrap_or_else(|| exchange.give_up(&format!("no answer within {:?}", at.tool.timeout)))
}

/// The beginning of a body, with secrets hidden.
fn body_of(at: &ToolAt, body: &Body) -> String {
    match body {
        Body::Whole(bytes) => {
            let masked = redact::mask(bytes, &at.tool.redact.result);
            printable(hide(at, &String::from_utf8_lossy(&masked)).as_bytes())
        }
        Body::Broken(why) => format!("(its body could not be read: {why})"),
    }
}
