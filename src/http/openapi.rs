//! The document of the doors, for SDKs and fuzzers: OpenAPI 3.1.
//!
//! Bodies are said by the types that are read and written, statuses by the table of problems. A door
//! is added to [`document`] in a few lines; `tests/it/tools.rs` holds that none is missing.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use axum::http::HeaderName;
use axum::http::header::{CONTENT_TYPE, LOCATION, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::response::IntoResponse;
use utoipa::openapi::header::Header;
use utoipa::openapi::path::{
    HttpMethod, Operation, OperationBuilder, Parameter, ParameterBuilder, ParameterIn,
};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::response::ResponseBuilder;
use utoipa::openapi::security::{Http as HttpScheme, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    Components, Content, Info, Object, ObjectBuilder, OpenApi, Paths, Ref, RefOr, Required, Schema, Type,
};
use utoipa::{IntoParams, ToSchema};

use super::calls::{self, CALL_ID, FENCING_TOKEN, GATEWAY_OUTCOME, IDEMPOTENCY_KEY, REPLAYED};
use super::problem::{self, Slug};
use super::tools::title;
use super::{ledger, listing, ops, pause, read, reconciliations, sagas, sessions, tools};

/// What whoever has a token, or brings none where one is asked for, may be told at any door.
const AT_EVERY_DOOR: [Slug; 3] = [Slug::Unauthenticated, Slug::Forbidden, Slug::RateLimited];
/// What is said of a request's body.
const OF_A_BODY: [Slug; 3] = [Slug::InvalidRequest, Slug::RequestTimeout, Slug::BodyTooLarge];
/// What is said of a request for a call before anything is known of that call.
const OF_A_REQUEST: [Slug; 8] = [
    Slug::KeyMissing,
    Slug::KeyInvalid,
    Slug::KeyConflict,
    Slug::UnknownTool,
    Slug::UnknownPath,
    Slug::InvalidArguments,
    Slug::StoreUnavailable,
    Slug::ShuttingDown,
];
/// What is said of a call.
const OF_A_CALL: [Slug; 16] = [
    Slug::CallInProgress,
    Slug::WrongState,
    Slug::OutcomeUnknown,
    Slug::SessionBusy,
    Slug::SessionFrozen,
    Slug::StaleFencingToken,
    Slug::PossibleDuplicate,
    Slug::KeyExpired,
    Slug::KeyReused,
    Slug::ToolRejected,
    Slug::RateLimited,
    Slug::BudgetExceeded,
    Slug::ToolUnreachable,
    Slug::ToolUnavailable,
    Slug::ResultUnavailable,
    Slug::ToolPaused,
];

/// `GET /openapi.json`. It says nothing of this gateway's tools, so anybody may read it.
pub(super) async fn show() -> impl IntoResponse {
    static DOCUMENT: LazyLock<String> = LazyLock::new(|| document().to_json().unwrap_or_default());
    ([(CONTENT_TYPE, "application/json")], DOCUMENT.as_str())
}

/// The document, in the order of the router.
pub fn document() -> OpenApi {
    use HttpMethod::{Get, Post};
    let mut doc = Document::default();

    doc.add(
        Door::of("list_tools", "The tools that this token may call, for a runtime or a model")
            .params::<tools::Wanted>()
            .problems(&[Slug::InvalidRequest])
            .json::<tools::ToolList>("The tools by name.", &[]),
        Get,
        "/v1/tools",
    );
    doc.add(
        Door::of("call_tool", "Run a call, or get what is known of it")
            .path("tool", "The tool's name.")
            .call_headers()
            .body::<calls::CallBody<'_>>()
            .problems(&OF_A_REQUEST)
            .problems(&OF_A_CALL)
            .json::<calls::ResultView>(
                "The tool's result, new or stored.",
                &[&IDEMPOTENCY_KEY, &CALL_ID, &GATEWAY_OUTCOME, &REPLAYED, &FENCING_TOKEN],
            )
            .accepted::<calls::Accepted<'_>>(),
        Post,
        "/v1/tools/{tool}/calls",
    );
    doc.add(
        Door::of(
            "preview_key",
            "The key that a request for a call gets, and the call that it would meet; nothing is claimed",
        )
        .path("tool", "The tool's name.")
        .call_headers()
        .body::<calls::CallBody<'_>>()
        .problems(&OF_A_REQUEST)
        .json::<tools::PreviewView>("Key, fingerprint, and what would become of the request.", &[]),
        Post,
        "/v1/tools/{tool}/key",
    );

    let of_a_tool = [Slug::UnknownTool, Slug::UnknownPath, Slug::WrongState, Slug::StoreUnavailable];
    let tool = |door: Door| {
        let door = door.path("tool", "The tool's name.").problems(&of_a_tool);
        door.json::<pause::ToolView<'_>>("The tool, and what was done to it.", &[])
    };
    doc.add(
        tool(Door::of("pause_tool", "Let no call of the tool begin, on any gateway").body::<read::Reason>()),
        Post,
        "/v1/tools/{tool}/pause",
    );
    doc.add(
        tool(
            Door::of("resume_tool", "Let the tool's calls begin again")
                .body_that_is::<read::OptionalReason>(Required::False),
        ),
        Post,
        "/v1/tools/{tool}/resume",
    );

    doc.add(
        Door::of("list_calls", "Calls that pass a filter, newest first")
            .params::<listing::Parameters>()
            .problems(&[Slug::InvalidRequest, Slug::RateLimited, Slug::StoreUnavailable])
            .json_or_lines::<listing::PageView<'_>>(
                "A page; or, if lines are accepted, all calls, one a line.",
            ),
        Get,
        "/v1/calls",
    );
    let of_a_call = [Slug::UnknownCall, Slug::UnknownPath, Slug::StoreUnavailable];
    doc.add(
        Door::of("show_call", "A call with its history")
            .path("id", "The call's id.")
            .problems(&of_a_call)
            .json::<ledger::CallView<'_>>("The call.", &[]),
        Get,
        "/v1/calls/{id}",
    );
    doc.add(
        Door::of("replay_call", "Whether a result is stable: as it is stored, or compared with a fresh one")
            .path("id", "The call's id.")
            .body::<ledger::ReplayBody>()
            .problems(&of_a_call)
            .problems(&[Slug::WrongState, Slug::ReplayUnsafe, Slug::ShuttingDown, Slug::ToolPaused])
            .json::<ledger::ReplayView<'_>>("Both results and their differences.", &[]),
        Post,
        "/v1/calls/{id}/replay",
    );
    doc.add(
        Door::of("resolve_call", "Say what became of a call whose outcome is unknown")
            .path("id", "The call's id.")
            .body::<ledger::ResolveBody<'_>>()
            .problems(&of_a_call)
            .problems(&[Slug::WrongState])
            .json::<ledger::CallView<'_>>("The call, without its history.", &[]),
        Post,
        "/v1/calls/{id}/resolve",
    );

    doc.add(
        Door::of("compensate_call", "Undo one call")
            .path("id", "The call's id.")
            .body::<read::Reason>()
            .problems(&of_a_call)
            .problems(&[Slug::WrongState])
            .json::<sagas::SagaView<'_>>("The undoing of the call, which is a saga of its own.", &[]),
        Post,
        "/v1/calls/{id}/compensate",
    );

    doc.add(
        Door::of("list_sagas", "Sagas, newest first")
            .params::<sagas::Parameters>()
            .problems(&[Slug::InvalidRequest, Slug::StoreUnavailable])
            .json::<sagas::PageView<'_>>("A page, without the calls of the sagas.", &[]),
        Get,
        "/v1/sagas",
    );
    let of_a_saga = [Slug::InvalidRequest, Slug::UnknownSaga, Slug::UnknownPath, Slug::StoreUnavailable];
    let saga = |door: Door| {
        let door = door.path("id", "The saga's id.").params::<read::Whose>().problems(&of_a_saga);
        door.json::<sagas::SagaView<'_>>("The saga with its calls, as it is now.", &[])
    };
    doc.add(saga(Door::of("show_saga", "A saga with its calls")), Get, "/v1/sagas/{id}");
    let complete = Door::of("complete_saga", "The plan has come to its end");
    let complete = complete.body_that_is::<read::OptionalReason>(Required::False);
    doc.add(saga(complete.problems(&[Slug::WrongState])), Post, "/v1/sagas/{id}/complete");
    for (id, summary, path) in [
        ("abort_saga", "Undo what the saga's calls have done", "/v1/sagas/{id}/abort"),
        ("retry_saga", "Try again what is stuck", "/v1/sagas/{id}/retry"),
        ("skip_saga", "Go on without undoing the call that is stuck", "/v1/sagas/{id}/skip"),
    ] {
        let door = saga(Door::of(id, summary).body::<read::Reason>().problems(&[Slug::WrongState]));
        doc.add(door, Post, path);
    }

    doc.add(
        Door::of("list_reconciliations", "What is reconciled, and the last run of each")
            .problems(&[Slug::StoreUnavailable])
            .json::<reconciliations::ListView<'_>>("All that are configured.", &[]),
        Get,
        "/v1/reconciliations",
    );
    let of_a_run =
        [Slug::InvalidRequest, Slug::UnknownReconciliation, Slug::UnknownPath, Slug::StoreUnavailable];
    let reconciliation = |door: Door| {
        let door = door.path("name", "The reconciliation's name.").problems(&of_a_run);
        door.json::<reconciliations::ReportView<'_>>("What a run has found, and what is done about it.", &[])
    };
    doc.add(
        reconciliation(
            Door::of("show_reconciliation", "A report: the last one, or that of one run")
                .params::<reconciliations::Wanted>(),
        ),
        Get,
        "/v1/reconciliations/{name}",
    );
    doc.add(
        reconciliation(
            Door::of("run_reconciliation", "Hold the ledger against its sources now")
                .body_that_is::<reconciliations::RunBody>(Required::False)
                .problems(&[Slug::ShuttingDown]),
        ),
        Post,
        "/v1/reconciliations/{name}/run",
    );

    let of_a_session = [Slug::InvalidRequest, Slug::UnknownPath, Slug::StoreUnavailable];
    let session =
        |door: Door| door.path("id", "The session's id.").params::<read::Whose>().problems(&of_a_session);
    doc.add(
        session(Door::of("show_session", "What bounds the branches of a session now"))
            .json::<sessions::SessionView<'_>>(
                "The session; one that was never seen has nothing in it.",
                &[],
            ),
        Get,
        "/v1/sessions/{id}",
    );
    doc.add(
        session(Door::of("unlock_session", "Take the session's lock away from its call"))
            .body::<read::Reason>()
            .problems(&[Slug::WrongState])
            .json::<sessions::Unlocked>("The call that had it.", &[]),
        Post,
        "/v1/sessions/{id}/unlock",
    );
    for (id, summary, path) in [
        ("freeze_session", "Let nothing of the session run", "/v1/sessions/{id}/freeze"),
        ("thaw_session", "Let the session go on", "/v1/sessions/{id}/thaw"),
    ] {
        doc.add(
            session(Door::of(id, summary))
                .body::<read::Reason>()
                .problems(&[Slug::WrongState])
                .json::<sessions::Frozen>("How it is now.", &[]),
            Post,
            path,
        );
    }

    doc.add(
        Door::of("accept_loss", "Accept that the store has lost data")
            .body::<read::Reason>()
            .problems(&[Slug::WrongState, Slug::StoreUnavailable])
            .json::<ops::LossAccepted>("How many calls are unknown now.", &[]),
        Post,
        "/v1/store/accept-loss",
    );
    doc.add(
        Door::of(
            "idempotency",
            "What this gateway promises about idempotency, for each tool that this token may call",
        )
        .json::<tools::Published>("Keys, headers and tools.", &[]),
        Get,
        "/.well-known/idempotency",
    );
    doc.add(Door::open("openapi", "This document").any_json("OpenAPI 3.1."), Get, "/openapi.json");
    doc.add(
        Door::open("metrics", "What is counted").text("text/plain", "Prometheus text exposition."),
        Get,
        "/metrics",
    );
    doc.add(
        Door::open("healthz", "Whether the process lives").text("text/plain", "It does."),
        Get,
        "/healthz",
    );
    doc.add(
        Door::open("readyz", "Whether calls may be claimed")
            .json::<ops::ReadinessView>("They may.", &[])
            .json_at::<ops::ReadinessView>(problem::NOT_READY.as_u16(), "They may not.", &[]),
        Get,
        "/readyz",
    );
    doc.add(
        Door::open("problems", "The problems").text("text/html", "A page with all of them."),
        Get,
        "/problems",
    );
    doc.add(
        Door::open("problem", "One problem")
            .path("slug", "The problem's name.")
            .problems(&[Slug::UnknownPath])
            .text("text/html", "A page that says what it means and what to do."),
        Get,
        "/problems/{slug}",
    );
    doc.finish()
}

#[derive(Default)]
struct Document {
    paths: Paths,
    components: Components,
}

impl Document {
    fn add(&mut self, door: Door, method: HttpMethod, path: &str) {
        let (operation, schemas) = door.finish();
        self.paths.add_path_operation(path, vec![method], operation);
        self.components.schemas.extend(schemas);
    }

    fn finish(mut self) -> OpenApi {
        let bearer = SecurityScheme::Http(HttpScheme::new(HttpAuthScheme::Bearer));
        self.components.security_schemes.insert("bearer".into(), bearer.into());
        let mut schemas = Vec::new();
        collect::<problem::Body<'_>>(&mut schemas);
        self.components.schemas.extend(schemas);
        let mut info = Info::new("oncegate", env!("CARGO_PKG_VERSION"));
        info.description = Some(
            "One intent, at most one side effect. Failures are RFC 9457 problems; each type is a page below /problems.".into(),
        );
        let mut document = OpenApi::new(info, self.paths);
        document.components = Some(self.components);
        document
    }
}

/// One door, as it is put together.
struct Door {
    operation: OperationBuilder,
    schemas: Vec<(String, RefOr<Schema>)>,
    problems: BTreeMap<u16, Vec<Slug>>,
}

impl Door {
    /// A door that asks who is there, if tokens are configured at all.
    fn of(id: &str, summary: &str) -> Self {
        let bearer = SecurityRequirement::new("bearer", Vec::<String>::new());
        let mut door = Self::open(id, summary).problems(&AT_EVERY_DOOR);
        door.operation = door.operation.security(bearer).security(SecurityRequirement::default());
        door
    }

    /// A door for everybody.
    fn open(id: &str, summary: &str) -> Self {
        let operation = OperationBuilder::new().operation_id(Some(id)).summary(Some(summary));
        Self { operation, schemas: Vec::new(), problems: BTreeMap::new() }
    }

    fn path(self, name: &str, description: &str) -> Self {
        let schema = ObjectBuilder::new().schema_type(Type::String).min_length(Some(1));
        self.param(name, ParameterIn::Path, Required::True, description, schema.build())
    }

    fn call_headers(self) -> Self {
        let plain = || ObjectBuilder::new().schema_type(Type::String);
        let key = plain().pattern(Some(r#"^([!#-~][!-~]{0,254}|"[!#-\[\]-~]{1,255}")$"#)).build();
        self.param(
            &title(IDEMPOTENCY_KEY.as_str()),
            ParameterIn::Header,
            Required::False,
            "The call's key: 1 to 255 characters of ASCII 0x21 to 0x7E, bare or as a quoted string.",
            key,
        )
        .param(
            "Prefer",
            ParameterIn::Header,
            Required::False,
            "wait=SECONDS (at most 60) and respond-async (RFC 7240).",
            plain().build(),
        )
        .param(
            "traceparent",
            ParameterIn::Header,
            Required::False,
            "Its trace id becomes the call's (W3C Trace Context); the tool gets it with the sampled flag, and tracestate.",
            plain().build(),
        )
    }

    fn param(
        mut self,
        name: &str,
        place: ParameterIn,
        required: Required,
        description: &str,
        schema: Object,
    ) -> Self {
        let parameter = ParameterBuilder::new().name(name).parameter_in(place).required(required);
        let parameter = parameter.description(Some(description)).schema(Some(schema));
        self.operation = self.operation.parameter(parameter);
        self
    }

    fn params<T: IntoParams>(mut self) -> Self {
        let parameters: Vec<Parameter> = T::into_params(|| Some(ParameterIn::Query));
        self.operation = self.operation.parameters(Some(parameters));
        self
    }

    fn body<T: ToSchema>(self) -> Self {
        self.body_that_is::<T>(Required::True)
    }

    fn body_that_is<T: ToSchema>(mut self, required: Required) -> Self {
        collect::<T>(&mut self.schemas);
        let body =
            RequestBodyBuilder::new().content("application/json", refer::<T>()).required(Some(required));
        self.operation = self.operation.request_body(Some(body.build()));
        self.problems(&OF_A_BODY)
    }

    fn problems(mut self, slugs: &[Slug]) -> Self {
        for slug in slugs {
            let slugs = self.problems.entry(slug.row().status.as_u16()).or_default();
            if !slugs.contains(slug) {
                slugs.push(*slug);
            }
        }
        self
    }

    fn json<T: ToSchema>(self, description: &str, headers: &[&HeaderName]) -> Self {
        self.json_at::<T>(200, description, headers)
    }

    fn json_at<T: ToSchema>(mut self, status: u16, description: &str, headers: &[&HeaderName]) -> Self {
        collect::<T>(&mut self.schemas);
        let response =
            ResponseBuilder::new().description(description).content("application/json", refer::<T>());
        let response = headers
            .iter()
            .fold(response, |response, name| response.header(title(name.as_str()), Header::default()));
        self.operation = self.operation.response(status.to_string(), response);
        self
    }

    fn json_or_lines<T: ToSchema>(mut self, description: &str) -> Self {
        collect::<T>(&mut self.schemas);
        let lines = Content::new(Some(Object::with_type(Type::String)));
        let response = ResponseBuilder::new().description(description);
        let response = response.content("application/json", refer::<T>()).content(listing::NDJSON, lines);
        self.operation = self.operation.response("200", response);
        self
    }

    /// 202, with the place to ask at.
    fn accepted<T: ToSchema>(self) -> Self {
        self.json_at::<T>(
            202,
            "The call runs; ask for it at Location.",
            &[&LOCATION, &IDEMPOTENCY_KEY, &CALL_ID, &GATEWAY_OUTCOME, &FENCING_TOKEN],
        )
    }

    fn any_json(mut self, description: &str) -> Self {
        let response = ResponseBuilder::new().description(description);
        let response =
            response.content("application/json", Content::new(Some(Object::with_type(Type::Object))));
        self.operation = self.operation.response("200", response);
        self
    }

    fn text(mut self, content_type: &str, description: &str) -> Self {
        let content = Content::new(Some(Object::with_type(Type::String)));
        let response = ResponseBuilder::new().description(description).content(content_type, content);
        self.operation = self.operation.response("200", response);
        self
    }

    fn finish(self) -> (Operation, Vec<(String, RefOr<Schema>)>) {
        let responses =
            self.problems.iter().map(|(status, slugs)| (status.to_string(), problem_response(slugs)));
        let operation = responses
            .fold(self.operation, |operation, (status, response)| operation.response(status, response));
        (operation.build(), self.schemas)
    }
}

fn problem_response(slugs: &[Slug]) -> ResponseBuilder {
    let named: Vec<String> =
        slugs.iter().map(|slug| format!("`{}`: {}.", slug.as_str(), slug.row().title)).collect();
    let response = ResponseBuilder::new()
        .description(named.join(" "))
        .content("application/problem+json", refer::<problem::Body<'_>>())
        .header(title(GATEWAY_OUTCOME.as_str()), Header::default())
        .header(title(RETRY_AFTER.as_str()), Header::new(Object::with_type(Type::Integer)));
    if slugs.contains(&Slug::Unauthenticated) {
        return response.header(title(WWW_AUTHENTICATE.as_str()), Header::default());
    }
    response
}

fn refer<T: ToSchema>() -> Content {
    Content::new(Some(Ref::from_schema_name(T::name())))
}

fn collect<T: ToSchema>(schemas: &mut Vec<(String, RefOr<Schema>)>) {
    schemas.push((T::name().into_owned(), T::schema()));
    T::schemas(schemas);
}
