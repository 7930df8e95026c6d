//! Compensations: their keys and arguments.
//!
//! Must not know when calls are undone, and in which order: `saga` decides that.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::call::undoes_unknown;
use crate::compensation::{Policy, Template};
use crate::json;
use crate::key;
use crate::mcp::elicitation;
use crate::outcome::is_mere_word;
use crate::record::{CallId, Content, Record, State};
use crate::tool::{Effect, Tool};
use crate::work::{Blocked, Blocker};

impl Template {
    /// The arguments of a call's compensation, as one JSON object.
    ///
    /// # Errors
    /// What cannot be found. Then nothing must be sent.
    pub fn args(&self, record: &Record) -> Result<Value, String> {
        let result = record.state.content().and_then(Content::stored);
        let result = result.and_then(read);
        self.args_from(record, result.as_ref())
    }

    /// The arguments that undo a surplus effect of a call: from the source's item instead of the call's result.
    ///
    /// `id`: the effect's name at the source.
    ///
    /// # Errors
    /// As [`args`](Self::args). Or they may undo an effect of the call that has to stay, or one that it makes later: they
    /// are the call's, or take something of the call and do not name this effect.
    pub fn args_of_surplus(
        &self,
        record: &Record,
        effect: &Value,
        id: &str,
    ) -> Result<Value, String> {
        if record.lacks_args() || record.lacks_result() {
            let why = "what the call asked for or what it got is not stored any more, so it is not known which effect is its own";
            return Err(why.to_owned());
        }
        let args = self.args_from(record, Some(effect))?;
        let is_own = self.args(record).as_ref() == Ok(&args);
        if is_own || (self.takes_of_call() && !self.names(effect, id)) {
            let why = "the arguments of its compensation do not name this effect, and may undo another one of the call";
            return Err(why.to_owned());
        }
        Ok(args)
    }

    /// Whether the arguments take this name from the source's item.
    fn names(&self, effect: &Value, id: &str) -> bool {
        let from = json!({ "result": effect });
        let pointers = self.pointers().into_iter();
        let mut taken = pointers.filter_map(|pointer| from.pointer(pointer.as_str()));
        taken.any(|taken| holds(taken, id))
    }

    fn args_from(&self, record: &Record, result: Option<&Value>) -> Result<Value, String> {
        let mut from = Map::new();
        from.insert("call".into(), about(record));
        if let Some(args) = read(&record.intent.args).filter(|_| !record.lacks_args()) {
            // A compensation answers no questions of a server.
            from.insert("args".into(), elicitation::without(args));
        }
        if let Some(result) = result {
            from.insert("result".into(), result.clone());
        }
        self.make(&Value::Object(from))
    }

    /// The arguments for the effect of an unknown call, from the source's item alone.
    ///
    /// # Errors
    /// As [`args`](Self::args).
    pub fn args_of_effect(&self, effect: &Value) -> Result<Value, String> {
        self.make(&json!({ "result": effect }))
    }
}

/// Whether a value is this text, or holds it.
fn holds(value: &Value, id: &str) -> bool {
    match value {
        Value::String(text) => text == id,
        Value::Number(number) => number.to_string() == id,
        Value::Array(items) => items.iter().any(|item| holds(item, id)),
        Value::Object(members) => members.values().any(|member| holds(member, id)),
        Value::Null | Value::Bool(_) => false,
    }
}

/// The values of a call that its compensation may use. An erased call has no names any more.
fn about(record: &Record) -> Value {
    let intent = &record.intent;
    let mut about = json!({
        "call_id": intent.call_id.to_string(),
        "tool": intent.tool,
        "key": intent.key,
        "tool_key": intent.lookup.for_tool(),
        "user_id": intent.user_id,
        "session_id": intent.session_id,
        "saga_id": intent.saga_id,
        "trace_id": intent.trace_id,
        "fencing": record.fencing,
    });
    if let (true, Some(members)) = (record.is_erased(), about.as_object_mut()) {
        for name in ["user_id", "session_id", "trace_id"] {
            members.remove(name);
        }
    }
    about
}

fn read(json: &Bytes) -> Option<Value> {
    json::parse(str::from_utf8(json).ok()?).ok()
}

/// Whether a compensation has undone its call. `tool`: that of the compensation.
///
/// # Errors
/// It has not, and what blocks that.
pub fn outcome_of(compensation: &Record, tool: &Tool) -> Result<(), Blocked> {
    let call_id = compensation.intent.call_id;
    Err(match &compensation.state {
        State::Succeeded(_) => return Ok(()),
        State::Running => Blocked::busy(format!("its compensation {call_id} runs")),
        State::Proposed | State::Approved => {
            Blocked::busy(format!("its compensation {call_id} waits for approval"))
        }
        State::Failed(failure) if is_mere_word(tool, failure) => {
            let why = &failure.why;
            Blocked::for_good(format!(
                "its compensation {call_id} failed: {why}. A tool may say so after its effect, and this one does not deduplicate, \
                 so an operator decides whether it is sent again"
            ))
        }
        State::Failed(failure) => {
            let why = &failure.why;
            Blocked::failed(format!("its compensation {call_id} failed: {why}"))
        }
        State::Unknown(_) => {
            let why = format!("it is not known whether its compensation {call_id} was executed");
            Blocked::by(Blocker::Unknown, why)
        }
        State::Compensating(_) | State::Compensated(_) | State::Stuck(_) => {
            Blocked::for_good(format!("its compensation {call_id} was undone itself"))
        }
    })
}

/// Whether an operator may have a call undone, whatever saga it belongs to.
///
/// # Errors
/// Why not.
pub fn may_be_undone(record: &Record, tool: &Tool) -> Result<(), &'static str> {
    if tool.effect == Effect::Read {
        return Err("the tool only reads");
    }
    if tool.compensation == Policy::Needless {
        return Err("its tool has nothing to undo: compensation = \"none\"");
    }
    if record.intent.key_source == key::Source::Compensation {
        return Err("the call undoes another one itself");
    }
    // It would be stuck: nothing says any more what is to be undone.
    let lacks_some = record.lacks_args() || record.lacks_result();
    if let (true, Policy::By(template)) = (lacks_some, &tool.compensation)
        && template.args(record).is_err()
    {
        return Err(
            "its compensation needs what is not stored of the call any more: undo it at the tool itself",
        );
    }
    match record.state {
        State::Compensated(_) => Err("what the call did has been undone"),
        State::Unknown(_) if !undoes_unknown(tool) => {
            Err("it is not known whether the call was executed: resolve it first")
        }
        _ => Ok(()),
    }
}

/// Whether the call still waits for this compensation: an operator may have settled it.
pub fn is_wanted(call_id: CallId, undone: Option<&Record>) -> bool {
    let waiting = undone.filter(|undone| matches!(undone.state, State::Compensating(_)));
    let decided = waiting.and_then(Record::compensation);
    decided.is_some_and(|decided| decided.call_id == call_id)
}

/// The key of a call's compensation.
pub fn key_of(call_id: CallId) -> String {
    format!("{}{call_id}", key::COMPENSATION)
}

/// The key of an effect's compensation. It is the same for every kind of anomaly.
pub fn key_of_effect(tool: &str, effect: &str) -> String {
    let digest = hex::encode(key::short_digest(["effect", tool, effect]));
    format!("{}effect-{digest}", key::COMPENSATION)
}

/// The call that the compensation with this key undoes; `None`: it undoes an effect, or is not a compensation.
pub fn undone_by(key: &str) -> Option<CallId> {
    key.strip_prefix(key::COMPENSATION)?
        .parse()
        .ok()
        .map(CallId)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compensation::read_members;
    use crate::record::{Compensation, ERASED, Undo};
    use crate::redact;
    use crate::testing::succeeded;

    fn template(args: Value) -> Result<Template, String> {
        let Value::Object(args) = args else {
            return Err("no object".into());
        };
        Ok(Template {
            tool: "cancel".into(),
            args: read_members(args)?,
            undoes_unknown: false,
        })
    }

    #[test]
    fn arguments_come_from_what_is_kept_of_the_call() {
        let call = succeeded("{\"order_id\":7,\"lines\":[{\"id\":\"a\"}]}");
        let args = template(json!({
            "order": "/result/order_id",
            "lines": [{ "id": "/result/lines/0/id", "why": "undone" }],
            "call": "/call/call_id",
            "force": true,
        }));
        let made = args.expect("a template").args(&call).expect("arguments");
        let expected = json!({
            "order": 7,
            "lines": [{ "id": "a", "why": "undone" }],
            "call": call.intent.call_id.to_string(),
            "force": true,
        });
        assert_eq!(made, expected);
    }

    #[test]
    fn missing_or_masked_arguments_are_never_sent() {
        let mut call = succeeded("{\"order_id\":7}");
        let missing = template(json!({ "order": "/result/id" })).expect("a template");
        assert_eq!(
            missing.args(&call),
            Err("there is nothing at /result/id".into())
        );
        std::sync::Arc::make_mut(&mut call.intent).args =
            format!("{{\"card\":{{\"no\":\"{}\"}}}}", redact::MASK).into();
        let masked = template(json!({ "card": "/args/card" })).expect("a template");
        assert_eq!(
            masked.args(&call),
            Err("what stood at /args/card is not stored".into())
        );
    }

    #[test]
    fn a_compensation_takes_nothing_of_what_was_erased() {
        let mut call = succeeded("{\"id\":7}");
        let intent = std::sync::Arc::make_mut(&mut call.intent);
        (intent.args, intent.user_id) = (ERASED.into(), String::new());
        call.state = State::Succeeded(Content::Unavailable("it was erased".into()));
        let by = |args: Value| Tool {
            compensation: Policy::By(template(args).expect("a template")),
            ..Tool::new("t")
        };
        for needs in [
            "/args",
            "/args/id",
            "/result/id",
            "/call/user_id",
            "/call/session_id",
        ] {
            let tool = by(json!({ "of": needs }));
            assert!(may_be_undone(&call, &tool).is_err(), "{needs}");
        }
        let tool = by(json!({ "of": "/call/tool_key", "saga": "/call/saga_id" }));
        assert_eq!(may_be_undone(&call, &tool), Ok(()));
        // Which of several effects is the call's own is not known any more.
        let surplus = template(json!({ "order": "/result/id" })).expect("a template");
        assert!(
            surplus
                .args_of_surplus(&call, &json!({ "id": 9 }), "9")
                .is_err()
        );
    }

    #[test]
    fn the_key_of_a_compensation_names_its_call() {
        let call_id = succeeded("{}").intent.call_id;
        assert_eq!(key_of(call_id), format!("compensate:{call_id}"));
        assert_eq!(undone_by(&key_of(call_id)), Some(call_id));
        for other in ["", "k", "compensate:", "compensate:k"] {
            assert_eq!(undone_by(other), None, "{other:?}");
        }
        assert_eq!(undone_by(&call_id.to_string()), None);
    }

    #[test]
    fn the_arguments_for_an_effect_come_from_its_item() {
        let template = template(json!({ "order": "/result/id" })).expect("a template");
        let effect = json!({ "id": 9 });
        assert_eq!(template.args_of_effect(&effect), Ok(json!({ "order": 9 })));
        assert!(template.args_of_effect(&json!({})).is_err());
    }

    #[test]
    fn a_surplus_effect_is_undone_by_arguments_that_do_not_undo_the_call() {
        let mut call = succeeded("{\"id\":7,\"paid\":10}");
        let undo = |call: &Record, args: Value| {
            let template = template(args).expect("a template");
            template.args_of_surplus(call, &json!({ "id": 9, "paid": 12 }), "9")
        };
        let by_effect = json!({ "order": "/result/id" });
        assert_eq!(undo(&call, by_effect), Ok(json!({ "order": 9 })));
        let by_both = json!({ "of": [{ "order": "/result/id" }], "key": "/call/key" });
        assert!(undo(&call, by_both).is_ok());
        let by_other_name = json!({ "paid": "/result/paid" });
        assert!(undo(&call, by_other_name).is_ok());
        let by_call = json!({ "order": "/call/tool_key" });
        let by_call_and_more = json!({ "order": "/call/tool_key", "paid": "/result/paid" });
        let by_constant = json!({ "order": "/call/tool_key", "paid": "/result/paid", "lines": 9 });
        for args in [by_call, by_call_and_more, by_constant, json!({})] {
            assert!(undo(&call, args.clone()).is_err(), "{args}");
            // A failed call may run again, and have an effect then.
            let failed = Record {
                state: crate::testing::failed(),
                ..call.clone()
            };
            assert!(undo(&failed, args.clone()).is_err(), "{args}");
        }
        assert!(holds(&json!([{ "of": "i9" }]), "i9"));
        assert!(!holds(&json!([null, true, 9, "i"]), "i9"));
        call.state = State::Succeeded(Content::Stored("{\"id\":9}".into()));
        assert!(undo(&call, json!({ "order": "/result/id" })).is_err());
    }

    #[test]
    fn a_value_with_a_mask_inside_is_never_sent() {
        for masked in [
            json!({ "lines": [{ "card": redact::MASK }] }),
            json!({ "lines": redact::MASK }),
        ] {
            let mut call = succeeded("{}");
            std::sync::Arc::make_mut(&mut call.intent).args = masked.to_string().into();
            let copies = template(json!({ "lines": "/args/lines" })).expect("a template");
            assert!(copies.args(&call).is_err(), "{masked}");
        }
    }

    #[test]
    fn only_a_compensation_that_succeeded_has_undone_its_call() {
        use crate::testing::failed;
        let done = succeeded("{}");
        for (state, blocker) in [
            (done.state.clone(), None),
            (State::Running, Some(Blocker::Busy)),
            (failed(), Some(Blocker::Failed)),
            (State::Unknown("timed out".into()), Some(Blocker::Unknown)),
            (State::Compensating(None), Some(Blocker::Final)),
            (State::Compensated(None), Some(Blocker::Final)),
            (State::Stuck(None), Some(Blocker::Final)),
        ] {
            let compensation = Record {
                state,
                ..done.clone()
            };
            let blocked = outcome_of(&compensation, &Tool::new("t")).err();
            let blocked = blocked.map(|blocked| blocked.blocker);
            assert_eq!(blocked, blocker, "{}", compensation.state.as_str());
        }
    }

    #[test]
    fn a_call_is_undone_alone_only_if_it_has_or_may_have_an_effect_that_can_be_undone() {
        let tool = |compensation| Tool {
            compensation,
            ..Tool::new("t")
        };
        let by = |undoes_unknown| {
            let template = template(json!({})).expect("a template");
            tool(Policy::By(Template {
                undoes_unknown,
                ..template
            }))
        };
        let read = Tool {
            effect: Effect::Read,
            ..by(true)
        };
        let done = succeeded("{}");
        let in_state = |state| Record {
            state,
            ..done.clone()
        };
        let unknown = in_state(State::Unknown("timed out".into()));
        let mut undoes = done.clone();
        std::sync::Arc::make_mut(&mut undoes.intent).key_source = key::Source::Compensation;
        let not_known = "it is not known whether the call was executed: resolve it first";
        for (record, tool, why) in [
            (&done, by(false), None),
            (&done, tool(Policy::Undeclared), None),
            (&unknown, by(true), None),
            (&in_state(State::Stuck(None)), by(false), None),
            (&done, read, Some("the tool only reads")),
            (
                &done,
                tool(Policy::Needless),
                Some("its tool has nothing to undo: compensation = \"none\""),
            ),
            (
                &undoes,
                by(true),
                Some("the call undoes another one itself"),
            ),
            (
                &in_state(State::Compensated(None)),
                by(true),
                Some("what the call did has been undone"),
            ),
            (&unknown, by(false), Some(not_known)),
            (&unknown, tool(Policy::Undeclared), Some(not_known)),
        ] {
            let refused = may_be_undone(record, &tool).err();
            assert_eq!(refused, why, "{}", record.state.as_str());
        }
    }

    #[test]
    fn a_compensation_is_wanted_only_by_the_call_that_waits_for_just_this_one() {
        let id = |number| CallId(uuid::Uuid::from_u128(number));
        let undone = |state, compensation: Option<u128>| Record {
            state,
            undo: Some(Undo {
                compensation: compensation.map(|number| Compensation {
                    tool: "cancel".into(),
                    call_id: id(number),
                }),
                skipped: false,
            }),
            ..succeeded("{}")
        };
        let waits = || State::Compensating(None);
        for (record, is_wanted) in [
            (Some(undone(waits(), Some(7))), true),
            (Some(undone(waits(), Some(8))), false),
            (Some(undone(waits(), None)), false),
            (Some(undone(State::Stuck(None), Some(7))), false),
            (Some(undone(State::Compensated(None), Some(7))), false),
            (Some(succeeded("{}")), false),
            (None, false),
        ] {
            assert_eq!(
                super::is_wanted(id(7), record.as_ref()),
                is_wanted,
                "{record:?}"
            );
        }
    }

    #[test]
    fn an_effect_has_the_same_key_for_ever_so_that_it_is_undone_once() {
        let key = key_of_effect("orders", "7");
        assert_eq!(key, "compensate:effect-050fadb724984a0cc05cabd208497403");
        assert_ne!(key, key_of_effect("orders", "8"));
        assert_ne!(
            key,
            key_of_effect("order", "s7"),
            "texts do not run together"
        );
    }
}
