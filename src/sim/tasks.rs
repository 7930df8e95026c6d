//! Agents that make calls as tasks of MCP: they lose answers, repeat the call, ask by its id at any gateway, and cancel.

use serde_json::{Value, json};

use super::agents::Agent;
use super::gateway::Answer;
use super::plan::Kind;
use super::world::{Asked, World};
use crate::core::mcp::revision::{CAPABILITIES, MODERN, VERSION};
use crate::core::mcp::tasks::EXTENSION;
use crate::core::mcp::{CALL_ID, KEY, SESSION};

/// The code of an error that says: there is no such task.
const NO_TASK: i64 = -32_602;
/// How often an agent asks for one call.
const PATIENCE: u64 = 6;

impl Agent {
    /// Makes calls that others ask for over HTTP, too.
    pub(super) async fn take_tasks(mut self) {
        let plan = self.gateways.world.plan.clone();
        for _ in 0..plan.steps {
            self.rest(700).await;
            let asked = self.any_call(&plan);
            self.call_as_task(&asked).await;
        }
    }

    /// Makes one call, until it has ended or the agent has lost its patience.
    async fn call_as_task(&mut self, asked: &Asked) {
        let world = self.gateways.world.clone();
        world
            .written()
            .asked
            .entry(asked.key.clone())
            .or_insert(asked.clone());
        let mut task = None;
        for _ in 0..PATIENCE {
            task = match task {
                None => match self.begin(asked).await {
                    Begun::Ended => return,
                    Begun::Task(id) => Some(id),
                    Begun::Unheard => None,
                },
                Some(id) if self.dice.chance(20) => {
                    world.written().cancelled.insert(id.clone());
                    self.ask_for("tasks/cancel", &id).await;
                    Some(id)
                }
                Some(id) => {
                    if self.look(asked, &id).await == Some(true) {
                        return;
                    }
                    // It may have lost the id, and knows only what it wanted.
                    (!self.dice.chance(30)).then_some(id)
                }
            };
            self.rest(500).await;
        }
    }

    async fn begin(&mut self, asked: &Asked) -> Begun {
        let world = self.gateways.world.clone();
        let arguments = json!({ "key": asked.key, "other": false });
        let meta = json!({ KEY: asked.key, SESSION: asked.session });
        let params = json!({ "name": asked.tool, "arguments": arguments, "_meta": meta });
        let answer = self.ask_mcp("tools/call", asked.tool, params).await;
        // The client has given up in the meantime, or its connection has.
        let answer = answer.filter(|_| world.is_calm() || !self.dice.chance(25));
        let Some(Answer { body, .. }) = answer else {
            world.say(format!("agent {}: {} unheard", self.number, asked.key));
            return Begun::Unheard;
        };
        let result = &body["result"];
        if let ("task", Some(id)) = (
            result["resultType"].as_str().unwrap_or_default(),
            result["taskId"].as_str(),
        ) {
            world.say(format!("agent {}: {} is task {id}", self.number, asked.key));
            world.count("tasks");
            world.judge_status(asked, result);
            world.judge_task(asked, id);
            return Begun::Task(id.to_owned());
        }
        if world.judge_result(asked, result) {
            Begun::Ended
        } else {
            Begun::Unheard
        }
    }

    /// Asks for a task. Whether it has ended; `None`: there was no answer.
    pub(super) async fn look(&mut self, asked: &Asked, id: &str) -> Option<bool> {
        let world = self.gateways.world.clone();
        let answer = self.ask_for("tasks/get", id).await?;
        let (error, task) = (&answer.body["error"], &answer.body["result"]);
        if error["code"] == NO_TASK {
            if !Kind::named(asked.tool).is_forgotten() {
                world.breaks(format!("the task of {} is not there", asked.key));
            }
            return Some(true);
        }
        // The store did not answer.
        if !error.is_null() {
            return None;
        }
        world.count("tasks looked at");
        world.judge_status(asked, task);
        if task["status"] == "completed" {
            world.judge_result(asked, &task["result"]);
        }
        Some(task["status"] != "working")
    }

    async fn ask_for(&mut self, method: &'static str, id: &str) -> Option<Answer> {
        let answer = self.ask_mcp(method, id, json!({ "taskId": id })).await;
        let heard = match &answer {
            None => "unheard".to_owned(),
            Some(Answer { body, .. }) => format!("{}{}", body["result"]["status"], body["error"]),
        };
        let world = &self.gateways.world;
        world.say(format!("agent {}: {method} {id} {heard}", self.number));
        answer
    }

    async fn ask_mcp(&mut self, method: &str, name: &str, mut params: Value) -> Option<Answer> {
        params["_meta"][VERSION] = MODERN.into();
        params["_meta"][CAPABILITIES] = json!({ "extensions": { EXTENSION: {} } });
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let headers = [
            ("accept", "application/json"),
            ("mcp-protocol-version", MODERN),
            ("mcp-method", method),
            ("mcp-name", name),
        ];
        let slot = self.any_slot();
        let asking = self
            .gateways
            .ask_with(self.number, slot, "/mcp", &body, &headers);
        asking.await
    }
}

/// What a request for a call has led to.
enum Begun {
    Ended,
    Task(String),
    /// There was no answer that says what to do.
    Unheard,
}

impl World {
    /// A task works, or is completed. It is cancelled only if an agent has asked for that, and its call has no effect.
    fn judge_status(&self, asked: &Asked, task: &Value) {
        let id = task["taskId"].as_str().unwrap_or_default();
        let is_possible = match task["status"].as_str() {
            Some("working" | "completed") => true,
            Some("cancelled") => {
                let is_asked = self.written().cancelled.contains(id);
                is_asked && self.books().of_call(id).next().is_none()
            }
            _ => false,
        };
        if !is_possible {
            self.breaks(format!("the task of {} is {}", asked.key, task["status"]));
        }
    }

    /// A call is one task, at each gateway and for each repetition.
    fn judge_task(&self, asked: &Asked, id: &str) {
        let mut written = self.written();
        let tasks = &mut written.tasks;
        let known = tasks.entry(asked.key.clone()).or_insert(id.to_owned());
        let is_other = *known != id && !Kind::named(asked.tool).is_forgotten();
        drop(written);
        if is_other {
            self.breaks(format!("{} is two tasks", asked.key));
        }
    }

    /// An agent hears of the end of a call. Whether that is a success.
    fn judge_result(&self, asked: &Asked, result: &Value) -> bool {
        if result["isError"] != false {
            return false;
        }
        let call = result["_meta"][CALL_ID].as_str().unwrap_or_default();
        let made = result["structuredContent"]["made"].as_u64();
        let is_forgotten = Kind::named(asked.tool).is_forgotten();
        self.count("successes of tasks told");
        self.judge_answer(&asked.key, call, made, is_forgotten);
        true
    }
}
