//! The tools as callers and models see them, and the preview of a key.

use std::collections::BTreeMap;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use super::Http;
use super::auth::Known;
use super::calls::{CALL_ID, FENCING_TOKEN, GATEWAY_OUTCOME, IDEMPOTENCY_KEY, REPLAYED, parse};
use super::problem::Problem;
use super::read::{QueryOf, ToolName, read_body};
use crate::core::key::{MAX_LEN, MODEL_MEMBER, Pointer};
use crate::core::tool::Tool;
use crate::core::tool_schema_export::{self as export, KEY_PATTERN, Keys};
use crate::gateway::{Preview, Would};

#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Wanted {
    /// The API whose shape the list takes; without it, the gateway's own.
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

/// Where the tools are shown to a model.
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
pub(super) async fn list(
    State(http): State<Http>,
    Known(caller): Known,
    QueryOf(wanted): QueryOf<Wanted>,
) -> Result<Json<ToolList>, Problem> {
    let keys = match wanted.keys {
        None | Some(WhoBringsKeys::Model) => Keys::Model,
        Some(WhoBringsKeys::Runtime) => Keys::Runtime,
    };
    let show = |tool| match wanted.format {
        None => Shown::Own(ToolView::of(tool, keys)),
        Some(Format::Openai) => Shown::OpenAi(OpenAiTool {
            r#type: "function",
            function: Function::of(tool, keys),
        }),
        Some(Format::OpenaiChat) => Shown::OpenAiChat(OpenAiChatTool {
            r#type: "function",
            function: Function::of(tool, keys),
        }),
        Some(Format::Anthropic) => Shown::Anthropic(AnthropicTool::of(tool, keys)),
        Some(Format::Mcp) => Shown::Mcp(McpTool::of(tool, keys)),
    };
    // A model is shown what it may call; an administrator may look at the others, too.
    let tools = http.gateway.base.tools_of(&caller);
    let tools = tools
        .iter()
        .map(|at| &at.tool)
        .filter(|tool| wanted.format.is_none() || caller.may_call(&tool.name));
    Ok(Json(ToolList {
        tools: tools.map(show).collect(),
    }))
}

/// A tool, and what a caller needs to know of it.
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

impl ToolView {
    fn of(tool: &Tool, keys: Keys) -> Self {
        Self {
            name: tool.name.clone(),
            description: tool.description.clone(),
            effect: tool.effect.as_str(),
            input_schema: export::input_schema(tool, keys),
            keys: KeyView::of(tool),
            session: tool.session.mode.as_str(),
        }
    }
}

impl KeyView {
    fn of(tool: &Tool) -> Self {
        let sources = tool.key.sources();
        let pointers = |list: &[Pointer]| list.iter().map(|p| p.as_str().to_owned()).collect();
        let window = |source| u64::try_from(tool.window(source).as_millis()).unwrap_or(u64::MAX);
        Self {
            key_sources: sources.iter().map(|source| source.as_str()).collect(),
            key_required: tool.key.required && tool.key.fields.is_empty(),
            key_fields: pointers(&tool.key.fields),
            key_ignore: pointers(&tool.key.ignore),
            dedup_window_ms: sources
                .iter()
                .map(|source| (source.as_str(), window(*source)))
                .collect(),
            retention_ms: u64::try_from(tool.retention.as_millis()).unwrap_or(u64::MAX),
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
        let name = tool.name.clone();
        if let Some(parameters) = export::strict(tool, keys) {
            return Self {
                name,
                description: tool.description.clone(),
                parameters,
                strict: true,
            };
        }
        let (parameters, description) = with_plain_root(tool, export::input_schema(tool, keys));
        Self {
            name,
            description,
            parameters,
            strict: false,
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

impl AnthropicTool {
    fn of(tool: &Tool, keys: Keys) -> Self {
        let (input_schema, description) = with_plain_root(tool, export::input_schema(tool, keys));
        Self {
            name: tool.name.clone(),
            description,
            input_schema,
        }
    }
}

/// An entry of MCP's `tools/list`.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct McpTool {
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
    pub(super) fn of(tool: &Tool, keys: Keys) -> Self {
        let hints = export::hints(tool);
        let annotations = Annotations {
            read_only_hint: hints.read_only,
            destructive_hint: hints.destructive,
            idempotent_hint: hints.idempotent,
        };
        let input_schema = export::input_schema(tool, keys);
        Self {
            name: tool.name.clone(),
            description: tool.description.clone(),
            input_schema,
            annotations,
        }
    }
}

/// A schema with a root that these APIs take, and a description.
///
/// The description has the keywords that were removed.
fn with_plain_root(tool: &Tool, schema: Value) -> (Value, String) {
    let (schema, taken) = export::plain_root(schema);
    let mut description = tool.description.clone();
    if !taken.is_empty() {
        let rest = Value::Object(taken);
        description =
            format!("{description} The arguments are also checked by this JSON Schema: {rest}")
                .trim()
                .to_owned();
    }
    (schema, description)
}

/// The answer that a request for a call would meet.
#[derive(Serialize, ToSchema)]
#[schema(as = KeyPreview)]
pub(super) struct PreviewView {
    tool: String,
    idempotency_key: String,
    #[schema(pattern = "^(runtime|business|model|derived)$")]
    key_source: &'static str,
    /// The `Idempotency-Key` that the tool gets.
    tool_key: String,
    /// As far as the key decides it.
    #[schema(pattern = "^(run|wait|replay|refuse)$")]
    would: &'static str,
    /// The name of the problem that would be answered.
    problem: Option<&'static str>,
    /// The call that holds the key, if the caller may read it; so is its state.
    call_id: Option<String>,
    state: Option<&'static str>,
}

/// `POST /v1/tools/{tool}/key`
pub(super) async fn key(
    State(http): State<Http>,
    Known(caller): Known,
    ToolName(tool): ToolName,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<PreviewView>, Problem> {
    let bytes = read_body(body, http.max_body).await?;
    let request = http
        .gateway
        .engine
        .large
        .read_off_workers(bytes.len(), || parse(tool, &headers, &bytes))
        .await?;
    let Preview {
        intent,
        would,
        meets,
    } = http.gateway.engine.preview(&caller, request).await?;
    let (would, problem) = match would {
        Would::Run => ("run", None),
        Would::Wait => ("wait", None),
        Would::Replay => ("replay", None),
        Would::Refuse(kind) => ("refuse", Some(Problem::from(kind).slug().as_str())),
    };
    Ok(Json(PreviewView {
        tool: intent.tool.clone(),
        idempotency_key: intent.key.clone(),
        key_source: intent.key_source.as_str(),
        tool_key: intent.lookup.for_tool(),
        would,
        problem,
        call_id: meets
            .as_ref()
            .map(|record| record.intent.call_id.to_string()),
        state: meets.as_ref().map(|record| record.state.as_str()),
    }))
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
pub(super) async fn well_known(State(http): State<Http>, Known(caller): Known) -> Json<Published> {
    let tools = http.gateway.base.tools_of(&caller);
    let tools = tools.iter().map(|at| &at.tool).map(|tool| PublishedTool {
        name: tool.name.clone(),
        effect: tool.effect.as_str(),
        keys: KeyView::of(tool),
    });
    Json(Published {
        key: KeyFormat {
            header: title(IDEMPOTENCY_KEY.as_str()),
            body_member: "idempotency_key",
            args_member: MODEL_MEMBER,
            min_length: 1,
            max_length: MAX_LEN,
            pattern: KEY_PATTERN,
        },
        headers: Headers {
            key: title(IDEMPOTENCY_KEY.as_str()),
            replayed: title(REPLAYED.as_str()),
            call_id: title(CALL_ID.as_str()),
            outcome: title(GATEWAY_OUTCOME.as_str()),
            fencing_token: title(FENCING_TOKEN.as_str()),
        },
        tools: tools.collect(),
    })
}

/// A header's name as people write it.
pub(super) fn title(name: &str) -> String {
    let words = name.split('-').map(|word| {
        let (first, rest) = word.split_at_checked(1).unwrap_or((word, ""));
        format!("{}{rest}", first.to_ascii_uppercase())
    });
    words.collect::<Vec<_>>().join("-")
}
