//! The tools as callers and models see them, and their pauses.

use std::collections::BTreeMap;

use axum::Json;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use super::headers::{CALL_ID, FENCING_TOKEN, GATEWAY_OUTCOME, IDEMPOTENCY_KEY, REPLAYED, title};
use super::ledger::{EventView, millis, time};
use super::openapi::Route;
use super::problem::{Problem, Slug};
use super::read::{Act, On, OptionalReason, QueryOf, Reason, ToolName, read_optional_reason};
use oncegate_engine::ToolState;
use oncegate_rules::key::{MAX_LEN, MODEL_MEMBER, Pointer};
use oncegate_rules::tool::{Effect, Tool};
use oncegate_rules::tool_schema_export::{self as export, KEY_PATTERN, Keys};

/// The routes of tools.
pub(super) fn routes() -> Vec<Route> {
    let on_tool = |route: Route| {
        let route = route.path("tool", "The tool's name.");
        route
            .problems(&[Slug::UnknownTool, Slug::WrongState])
            .of_one()
            .json::<ToolStateView<'_>>("The tool, and what was done to it.")
    };
    let listed = "The tools that this token may call, for a runtime or a model";
    let shown =
        "Whether a tool is paused; for administrators also the last acts of operators on it";
    let paused = "Let no call of the tool begin, on any gateway";
    let resumed = "Let the tool's calls begin again";
    let promised =
        "What this gateway promises about idempotency, for each tool that this token may call";
    vec![
        Route::get("/v1/tools", "list_tools", listed, list)
            .params::<Wanted>()
            .problems(&[Slug::InvalidRequest])
            .json::<ToolList>("The tools by name."),
        on_tool(Route::get("/v1/tools/{tool}", "show_tool", shown, show)),
        on_tool(
            Route::post("/v1/tools/{tool}/pause", "pause_tool", paused, pause).body::<Reason>(),
        ),
        on_tool(
            Route::post("/v1/tools/{tool}/resume", "resume_tool", resumed, resume)
                .optional_body::<OptionalReason>(),
        ),
        Route::get(
            "/.well-known/idempotency",
            "idempotency",
            promised,
            well_known,
        )
        .json::<Published>("Keys, headers and tools."),
    ]
}

#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Wanted {
    /// The API in whose format the list is; by default the gateway's own format.
    #[param(inline)]
    format: Option<Format>,
    /// Who brings the keys of calls: `model` (the default) lets the schemas of write tools ask for one.
    #[param(inline)]
    keys: Option<WhoBringsKeys>,
}

/// Who brings the keys of calls.
#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum WhoBringsKeys {
    Model,
    Runtime,
}

/// The API that shows the tools to a model.
#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Format {
    /// Function tools of OpenAI's Responses API.
    Openai,
    /// Function tools of OpenAI's Chat Completions API.
    OpenaiChat,
    /// Tools of Anthropic's Messages API.
    Anthropic,
    /// What MCP's `tools/list` answers.
    Mcp,
}

/// The tools, in the shape that was asked for.
#[derive(Serialize, ToSchema)]
pub(super) struct ToolList {
    tools: Vec<Shown>,
}

#[derive(Serialize, ToSchema)]
#[serde(untagged)]
enum Shown {
    Own(ToolView),
    OpenAi(OpenAiTool),
    OpenAiChat(OpenAiChatTool),
    Anthropic(AnthropicTool),
    Mcp(McpTool),
}

/// `GET /v1/tools`
async fn list(on: On<QueryOf<Wanted>>) -> Json<ToolList> {
    let QueryOf(wanted) = on.target;
    let keys = match wanted.keys {
        None | Some(WhoBringsKeys::Model) => Keys::Model,
        Some(WhoBringsKeys::Runtime) => Keys::Runtime,
    };
    let show = |tool: &Tool| match wanted.format {
        None => Shown::Own(ToolView {
            name: tool.name.clone(),
            description: tool.description.clone(),
            effect: tool.effect.as_str(),
            input_schema: export::input_schema(tool, keys),
            keys: KeyView::of(tool),
            session: tool.session.mode.as_str(),
        }),
        Some(Format::Openai) => Shown::OpenAi(OpenAiTool {
            r#type: "function",
            function: Function::of(tool, keys),
        }),
        Some(Format::OpenaiChat) => Shown::OpenAiChat(OpenAiChatTool {
            r#type: "function",
            function: Function::of(tool, keys),
        }),
        Some(Format::Anthropic) => {
            let (input_schema, description) = with_plain_root(tool, keys);
            Shown::Anthropic(AnthropicTool {
                name: tool.name.clone(),
                description,
                input_schema,
            })
        }
        Some(Format::Mcp) => Shown::Mcp(McpTool::of(tool, keys)),
    };
    // A list for a model has only the tools that the token may call; an administrator sees all others here.
    let tools = on.http.gateway.base.tools_of(&on.caller);
    let tools = tools
        .iter()
        .map(|at| &at.tool)
        .filter(|tool| wanted.format.is_none() || on.caller.may_call(&tool.name));
    Json(ToolList {
        tools: tools.map(show).collect(),
    })
}

/// A tool, and what a caller needs to know about it.
#[derive(Serialize, ToSchema)]
#[schema(as = Tool)]
pub(super) struct ToolView {
    name: String,
    description: String,
    #[schema(pattern = "^(read|write)$")]
    effect: &'static str,
    /// JSON Schema of `args`, with the key that a model is asked for.
    #[schema(value_type = Object)]
    input_schema: Value,
    #[serde(flatten)]
    keys: KeyView,
    /// How calls of one session run together.
    #[schema(pattern = "^(exclusive|fenced|shared)$")]
    session: &'static str,
}

/// How the calls of a tool get their keys, and how long these are remembered.
#[derive(Serialize, ToSchema)]
#[schema(as = ToolKeys)]
pub(super) struct KeyView {
    /// The sources of a call's key in their order; the first that yields one wins.
    key_sources: Vec<&'static str>,
    /// Whether a call that brings no key is refused.
    key_required: bool,
    /// The members of `args` that make the key of a call that brings none, as JSON Pointers.
    key_fields: Vec<String>,
    /// Arguments that may differ from one repetition to the next, as JSON Pointers.
    key_ignore: Vec<String>,
    /// How long the key of a finished call is remembered, by its source.
    dedup_window_ms: BTreeMap<&'static str, u64>,
    /// How long a finished call stays in the ledger.
    retention_ms: u64,
}

impl KeyView {
    fn of(tool: &Tool) -> Self {
        let sources = tool.key.sources();
        let pointers = |list: &[Pointer]| list.iter().map(|p| p.as_str().to_owned()).collect();
        let window = |source| millis(tool.window(source));
        Self {
            key_sources: sources.iter().map(|source| source.as_str()).collect(),
            key_required: tool.key.required && tool.key.fields.is_empty(),
            key_fields: pointers(&tool.key.fields),
            key_ignore: pointers(&tool.key.ignore),
            dedup_window_ms: sources
                .iter()
                .map(|source| (source.as_str(), window(*source)))
                .collect(),
            retention_ms: millis(tool.retention),
        }
    }
}

/// A function tool of OpenAI's Responses API.
#[derive(Serialize, ToSchema)]
struct OpenAiTool {
    #[schema(pattern = "^function$")]
    r#type: &'static str,
    #[serde(flatten)]
    function: Function,
}

/// A function tool of OpenAI's Chat Completions API.
#[derive(Serialize, ToSchema)]
struct OpenAiChatTool {
    #[schema(pattern = "^function$")]
    r#type: &'static str,
    function: Function,
}

/// Strict where every property is required or may be null already.
#[derive(Serialize, ToSchema)]
#[schema(as = OpenAiFunction)]
struct Function {
    name: String,
    description: String,
    #[schema(value_type = Object)]
    parameters: Value,
    strict: bool,
}

impl Function {
    fn of(tool: &Tool, keys: Keys) -> Self {
        let (parameters, description, strict) = match export::strict(tool, keys) {
            Some(parameters) => (parameters, tool.description.clone(), true),
            None => {
                let (parameters, description) = with_plain_root(tool, keys);
                (parameters, description, false)
            }
        };
        Self {
            name: tool.name.clone(),
            description,
            parameters,
            strict,
        }
    }
}

/// A tool of Anthropic's Messages API.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct AnthropicTool {
    name: String,
    description: String,
    #[schema(value_type = Object)]
    input_schema: Value,
}

/// An entry of MCP's `tools/list`.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct McpTool {
    name: String,
    description: String,
    #[schema(value_type = Object)]
    input_schema: Value,
    annotations: Annotations,
}

/// Hints about what a tool does.
#[derive(Serialize, ToSchema)]
#[schema(as = McpAnnotations)]
#[serde(rename_all = "camelCase")]
struct Annotations {
    read_only_hint: bool,
    destructive_hint: bool,
    idempotent_hint: bool,
}

impl McpTool {
    /// What a model sees of a tool.
    pub fn of(tool: &Tool, keys: Keys) -> Self {
        let is_read = tool.effect == Effect::Read;
        Self {
            name: tool.name.clone(),
            description: tool.description.clone(),
            input_schema: export::input_schema(tool, keys),
            annotations: Annotations {
                read_only_hint: is_read,
                // What a write does is not known, so it may destroy something.
                destructive_hint: !is_read,
                // Same arguments and key have no further effect: the gateway sees to it.
                idempotent_hint: true,
            },
        }
    }
}

/// A schema whose root these APIs accept, and the tool's description.
///
/// Keywords that are removed from the root are quoted in the description.
fn with_plain_root(tool: &Tool, keys: Keys) -> (Value, String) {
    let (schema, taken) = export::plain_root(export::input_schema(tool, keys));
    let description = &tool.description;
    if taken.is_empty() {
        return (schema, description.clone());
    }
    let rest = Value::Object(taken);
    let more = format!("{description} The arguments are also checked by this JSON Schema: {rest}");
    (schema, more.trim().to_owned())
}

/// `GET /v1/tools/{tool}`
async fn show(on: On<ToolName>) -> Result<Response, Problem> {
    let (pauses, ToolName(tool)) = (&on.http.gateway.pauses, &on.target);
    let state = pauses.show_tool(&on.caller, tool).await?;
    Ok(shown_state(tool, &state))
}

/// `POST /v1/tools/{tool}/pause`
async fn pause(Act { on, reason }: Act<ToolName>) -> Result<Response, Problem> {
    let (pauses, ToolName(tool)) = (&on.http.gateway.pauses, &on.target);
    let state = pauses.set_paused(&on.caller, tool, true, &reason).await?;
    Ok(shown_state(tool, &state))
}

/// `POST /v1/tools/{tool}/resume`
async fn resume(on: On<ToolName>, body: Body) -> Result<Response, Problem> {
    let reason = read_optional_reason(body, on.http.max_body).await?;
    let (pauses, ToolName(tool)) = (&on.http.gateway.pauses, &on.target);
    let state = pauses.set_paused(&on.caller, tool, false, &reason).await?;
    Ok(shown_state(tool, &state))
}

/// A tool, and what operators have done to it.
#[derive(Serialize, ToSchema)]
#[schema(as = ToolState)]
pub(super) struct ToolStateView<'a> {
    tool: &'a str,
    paused: bool,
    #[schema(required, format = DateTime)]
    since: Option<String>,
    /// Who paused it; for administrators only.
    #[schema(required)]
    by: Option<&'a str>,
    /// Why it is paused; for administrators only.
    #[schema(required)]
    reason: Option<&'a str>,
    /// The newest acts, oldest first. For administrators only.
    events: Vec<EventView<'a>>,
}

fn shown_state(tool: &str, state: &ToolState) -> Response {
    let paused = state.paused.as_ref();
    Json(ToolStateView {
        tool,
        paused: state.since.is_some(),
        since: state.since.map(time),
        by: paused.map(|entry| entry.by.as_str()),
        reason: paused.map(|entry| entry.detail.as_str()),
        events: state.events.iter().map(EventView::of).collect(),
    })
    .into_response()
}

/// The gateway's promises about idempotency, for SDKs.
#[derive(Serialize, ToSchema)]
#[schema(as = Idempotency)]
pub(super) struct Published {
    key: KeyFormat,
    headers: Headers,
    tools: Vec<PublishedTool>,
}

/// Where a key may stand in a request, and what one looks like.
#[derive(Serialize, ToSchema)]
struct KeyFormat {
    /// The request header; bare, or quoted as a structured-field string.
    header: String,
    /// The member of the request's body.
    body_member: &'static str,
    /// The member of `args` that a model fills in.
    args_member: &'static str,
    min_length: usize,
    max_length: usize,
    pattern: &'static str,
}

/// The headers of an answer.
#[derive(Serialize, ToSchema)]
#[schema(as = IdempotencyHeaders)]
struct Headers {
    key: String,
    /// `true` or `false`: whether the answer is a stored one.
    replayed: String,
    call_id: String,
    /// `executed`, `not-executed`, `unknown` or `replayed`.
    outcome: String,
    fencing_token: String,
}

#[derive(Serialize, ToSchema)]
struct PublishedTool {
    name: String,
    #[schema(pattern = "^(read|write)$")]
    effect: &'static str,
    #[serde(flatten)]
    keys: KeyView,
}

/// `GET /.well-known/idempotency`
async fn well_known(on: On<()>) -> Json<Published> {
    let tools = on.http.gateway.base.tools_of(&on.caller);
    let tools = tools.iter().map(|at| &at.tool).map(|tool| PublishedTool {
        name: tool.name.clone(),
        effect: tool.effect.as_str(),
        keys: KeyView::of(tool),
    });
    Json(Published {
        key: KeyFormat {
            header: title(&IDEMPOTENCY_KEY),
            body_member: "idempotency_key",
            args_member: MODEL_MEMBER,
            min_length: 1,
            max_length: MAX_LEN,
            pattern: KEY_PATTERN,
        },
        headers: Headers {
            key: title(&IDEMPOTENCY_KEY),
            replayed: title(&REPLAYED),
            call_id: title(&CALL_ID),
            outcome: title(&GATEWAY_OUTCOME),
            fencing_token: title(&FENCING_TOKEN),
        },
        tools: tools.collect(),
    })
}
