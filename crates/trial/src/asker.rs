//! The requests of a trial, step by step.
//!
//! The sender of ordinary calls sends each of them once.

use std::time::Duration;

use reqwest::Method;
use serde_json::Value;
use tokio::time::{Instant, sleep, sleep_until};

use super::plan::{Intent, TrialPlan, find, texts};
use super::report::{COUNT, Exchanged, printable};
use super::secrets::hide;
use oncegate_engine::{ToolAt, ToolRequest, probe_url};
use oncegate_rules::compensation::{Policy, Template};
use oncegate_rules::evidence::{Body, Evidence, Sent};
use oncegate_rules::key::Pointer;
use oncegate_rules::trial::{Naming, Other, Probed, Round, Seen, Step, Trial, Undone, undoing};
use oncegate_rules::{outcome, redact, unknown};
use oncegate_tools::{Client, Deadline, Downstream, Exchange, Party, Request, origin_only};

/// How often a refused repetition is sent again, and the wait before each.
///
/// The tool may refuse because the first request is still under way.
const SETTLE: u32 = 4;
const SETTLE_WAIT: Duration = Duration::from_millis(500);
/// How long to wait for an operator's count.
const COUNT_TIMEOUT: Duration = Duration::from_secs(10);
/// The tenant of a trial, so that it shares no connection with calls of tenants.
const TENANT: &str = "oncegate-verify-tool";

/// Sends the requests of a trial.
pub(super) struct Asker<'a> {
    pub(super) plan: &'a TrialPlan,
    pub(super) downstream: Downstream,
    pub(super) exchanges: Vec<Exchanged>,
    /// Gets each exchange as it comes, as lines.
    pub(super) tell: &'a mut dyn FnMut(&str),
}

impl Asker<'_> {
    fn note(&mut self, exchanged: Exchanged) {
        (self.tell)(&exchanged.lines());
        self.exchanges.push(exchanged);
    }

    /// Runs all steps.
    ///
    /// # Errors
    /// The first request had no effect, or a count cannot be read: then the trial shows nothing.
    pub(super) async fn trial(&mut self) -> Result<Trial, String> {
        let (plan, at) = (self.plan, self.plan.at());
        let count_at = plan.count_at.as_ref();
        let intent = plan.intent(&plan.args);
        let before = self.count(count_at, &intent).await?;
        let seen = self.send(at, "first", &intent).await;
        if !seen.is_executed() {
            return Err(format!(
                "nothing can be shown: the first request has to be executed, but {}",
                seen.why
            ));
        }
        let due = Instant::now() + plan.after;
        let first = vec![seen.clone()];
        let first = self.step(count_at, &intent, before, first).await?;
        let again = self.repeat(at, "again", &intent, count_at).await?;
        let (mut rounds, mut intents) = (Vec::new(), Vec::new());
        for _ in 0..plan.rounds {
            let intent = plan.intent(&plan.args);
            rounds.push(self.round(&intent).await?);
            intents.push(intent);
        }
        sleep_until(due).await;
        let later = self.repeat(at, "later", &intent, count_at).await?;
        let probed = match at.has_probe() {
            true => Some(self.probed(&intent).await),
            false => None,
        };
        let other = match &plan.other_args {
            Some(args) => Some(self.other(&intent, args).await?),
            None => None,
        };
        let undone = match &at.tool.compensation {
            Policy::By(template) => {
                let of_round = rounds.first().and_then(|round| round.step.seen.first());
                let second = intents.first().zip(of_round);
                Some(self.undo(template, (&intent, &seen), second).await?)
            }
            Policy::Undeclared | Policy::Needless => None,
        };
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

    /// A step that ends with these answers. `before`: the count at its begin.
    async fn step(
        &mut self,
        count_at: Option<&Pointer>,
        intent: &Intent,
        before: Option<i64>,
        seen: Vec<Seen>,
    ) -> Result<Step, String> {
        let after = self.count(count_at, intent).await?;
        let both = before.zip(after);
        Ok(Step {
            seen,
            change: both.and_then(|(before, after)| after.checked_sub(before)),
        })
    }

    /// Sends a request again, several times if the tool refuses it for now.
    async fn repeat(
        &mut self,
        at: &ToolAt,
        step: &'static str,
        intent: &Intent,
        count_at: Option<&Pointer>,
    ) -> Result<Step, String> {
        let before = self.count(count_at, intent).await?;
        let mut seen = vec![self.send(at, step, intent).await];
        self.settle(at, intent, &mut seen).await;
        self.step(count_at, intent, before, seen).await
    }

    /// Repeats a refused request until it gets a result. Keeps only the last answer.
    async fn settle(&mut self, at: &ToolAt, intent: &Intent, seen: &mut Vec<Seen>) {
        if !seen.iter().any(Seen::is_refused_for_now) {
            return;
        }
        for number in 1..=SETTLE {
            sleep(SETTLE_WAIT).await;
            let answer = self.send(at, "once more", intent).await;
            if number == SETTLE || !answer.is_refused_for_now() {
                return seen.push(answer);
            }
        }
    }

    /// Two requests at once under a key of their own.
    async fn round(&mut self, intent: &Intent) -> Result<Round, String> {
        let at = self.plan.at();
        let count_at = self.plan.count_at.as_ref();
        let before = self.count(count_at, intent).await?;
        let (one, two) = (self.begin(at, intent)?, self.begin(at, intent)?);
        let is_sent = (one.watch_sending(), two.watch_sending());
        // Each answer, and whether the other request was under way when it came.
        let one = async { (finish(at, one).await, (is_sent.1)()) };
        let two = async { (finish(at, two).await, (is_sent.0)()) };
        let ((one, beside_one), (two, beside_two)) = tokio::join!(one, two);
        let mut seen = vec![
            self.read(at, "at once", intent, one),
            self.read(at, "at once", intent, two),
        ];
        self.settle(at, intent, &mut seen).await;
        Ok(Round {
            step: self.step(count_at, intent, before, seen).await?,
            is_together: beside_one && beside_two,
        })
    }

    /// Sends other arguments under a used key and, if refused, under a new one.
    async fn other(&mut self, used: &Intent, args: &Value) -> Result<Other, String> {
        let (plan, at) = (self.plan, self.plan.at());
        let mut new = plan.intent(args);
        // An id that stands in the arguments does not tell keys apart.
        let first = texts(&plan.args);
        let differing = texts(args).into_iter().filter(|text| !first.contains(text));
        new.sent.extend(differing);
        let under_used = Intent {
            args: new.args.clone(),
            ..used.clone()
        };
        let count_at = plan.count_at.as_ref();
        let before = self.count(count_at, used).await?;
        let seen = self.send(at, "other arguments", &under_used).await;
        let is_refused = seen.is_refused();
        Ok(Other {
            under_used_key: self.step(count_at, used, before, vec![seen]).await?,
            under_new_key: match is_refused {
                true => Some(Step {
                    seen: vec![self.send(at, "other arguments, new key", &new).await],
                    change: None,
                }),
                false => None,
            },
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
        let Some(by) = find(&plan.tools, &template.tool) else {
            return Ok(Err(format!("there is no tool {:?}", template.tool)));
        };
        let undoing = |(of, seen): (&Intent, &Seen)| {
            let args = undoing(template, &of.args, seen, &of.key, of.call_id)?;
            Ok::<_, String>(Intent::new(args.to_string().into(), texts(&args)))
        };
        let intent = match undoing(first) {
            Ok(intent) => intent,
            Err(why) => return Ok(Err(format!("its arguments cannot be made: {why}"))),
        };
        let count_at = plan.undo_count_at.as_ref();
        let before = self.count(count_at, first.0).await?;
        let seen = vec![self.send(by, "compensation", &intent).await];
        let undone = self.step(count_at, first.0, before, seen).await?;
        let again = self.repeat(by, "compensation again", &intent, count_at);
        let again = again.await?;
        let other = match other.map(undoing) {
            Some(Ok(intent)) if plan.undo_id.is_some() => Some(Step {
                seen: vec![self.send(by, "compensation of another", &intent).await],
                change: None,
            }),
            _ => None,
        };
        Ok(Ok(Undone {
            naming: Naming {
                id: plan.undo_id.clone(),
                ignore: by.tool.replay_ignore.clone(),
                hidden: by.tool.redact.result.clone(),
            },
            first: undone,
            again,
            other,
        }))
    }

    /// Sends one request and reads its answer.
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
            is_sent_again: false,
            takes_task: false,
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
            Evidence::NotSent { why }
            | Evidence::NoAnswer { why }
            | Evidence::Lost { why }
            | Evidence::Task { why, .. } => hide(at, why),
            Evidence::Mcp(answer) => body_of(at, &answer.body),
        };
        self.note(Exchanged {
            step,
            method: at.endpoint.method.to_string(),
            url: origin_only(&at.endpoint.url),
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
        let at = self.plan.at();
        let by = Instant::now() + at.tool.timeout;
        let party = Party::tool(TENANT, &at.tool.name);
        // A probe gets only those arguments that the ledger keeps of a call.
        let stored = redact::mask(&intent.args, &at.tool.redact.args);
        let asked = match probe_url(&at.tool, &stored, &intent.key) {
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
            url: url.map_or_else(String::new, origin_only),
            key: Some(intent.key.clone()),
            sent: None,
            status,
            answer,
        });
        finding
    }

    /// Probes for a key that was never sent, and for one that was.
    async fn probed(&mut self, used: &Intent) -> Probed {
        let plan = self.plan;
        let tells_keys_apart = plan.at().tool.probe().is_some_and(|probe| {
            let target = &probe.target;
            let fresh = plan.fresh.as_ref();
            let has_fresh = fresh.is_some_and(|at| target.used().any(|used| used.holds(at)));
            target.has_key() || has_fresh
        });
        let unused = if tells_keys_apart {
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

    /// The operator's count now; `None`: no option asks for it.
    ///
    /// # Errors
    /// It cannot be read.
    async fn count(
        &mut self,
        at: Option<&Pointer>,
        intent: &Intent,
    ) -> Result<Option<i64>, String> {
        let (Some(count), Some(at)) = (&self.plan.count, at) else {
            return Ok(None);
        };
        let at = at.as_str();
        let by = Instant::now() + COUNT_TIMEOUT;
        let party = Party::tool(TENANT, "count");
        let url = count.url.replace("{key}", &intent.key);
        let asked = self.downstream.probe(&count.endpoint, party, &url, by);
        let failed = |why: String| format!("nothing can be shown: the count cannot be read: {why}");
        let (status, body, _) = asked.await.map_err(failed)?;
        let Body::Whole(bytes) = &body else {
            return Err(failed("its answer did not come whole".into()));
        };
        let answer = serde_json::from_slice::<Value>(bytes).ok();
        let counted = match answer.as_ref().and_then(|all| all.pointer(at)) {
            Some(Value::Array(items)) => i64::try_from(items.len()).ok(),
            Some(number) => number.as_i64(),
            None => None,
        };
        let counted = counted.filter(|_| status == 200).ok_or_else(|| {
            failed(format!(
                "it answered {status}, without a whole number or a list at {at}"
            ))
        })?;
        self.note(Exchanged {
            step: COUNT,
            method: Method::GET.to_string(),
            url: origin_only(&count.endpoint.url),
            key: None,
            sent: None,
            status: Some(status),
            answer: format!("{at} is {counted}"),
        });
        Ok(Some(counted))
    }
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
