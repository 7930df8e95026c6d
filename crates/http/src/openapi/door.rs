//! The description of one route in the OpenAPI document: its request and its answers.

use std::collections::BTreeMap;

use axum::http::HeaderName;
use axum::http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use utoipa::openapi::header::Header;
use utoipa::openapi::path::{
    HttpMethod, OperationBuilder, Parameter, ParameterBuilder, ParameterIn,
};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::response::ResponseBuilder;
use utoipa::openapi::security::{
    Http as HttpScheme, HttpAuthScheme, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{
    Components, Content, Info, Object, ObjectBuilder, OpenApi, Paths, Ref, RefOr, Required, Schema,
    Type,
};
use utoipa::{IntoParams, ToSchema};

use crate::headers::{GATEWAY_OUTCOME, IDEMPOTENCY_KEY, title};
use crate::listing;
use crate::problem::{self, Slug};

/// Problems that any guarded route may answer with.
const AT_EVERY_DOOR: [Slug; 3] = [Slug::Unauthenticated, Slug::Forbidden, Slug::RateLimited];
/// Problems of a request's body.
const OF_A_BODY: [Slug; 3] = [
    Slug::InvalidRequest,
    Slug::RequestTimeout,
    Slug::BodyTooLarge,
];

/// One route: its request and its answers.
pub(super) struct Door {
    path: String,
    method: HttpMethod,
    operation: OperationBuilder,
    schemas: Vec<(String, RefOr<Schema>)>,
    problems: BTreeMap<u16, Vec<Slug>>,
    speaks_json_rpc: bool,
}

/// Statuses that errors of JSON-RPC also have.
const RPC_ERRORS: [u16; 2] = [400, 404];

impl Door {
    /// The document of all these routes.
    pub(super) fn document(doors: impl IntoIterator<Item = Self>) -> OpenApi {
        let (mut paths, mut components) = (Paths::default(), Components::default());
        for door in doors {
            let mut operation = door.operation;
            for (status, slugs) in door.problems {
                let is_rpc = door.speaks_json_rpc && RPC_ERRORS.contains(&status);
                operation =
                    operation.response(status.to_string(), problem_response(&slugs, is_rpc));
            }
            paths.add_path_operation(door.path, vec![door.method], operation.build());
            components.schemas.extend(door.schemas);
        }
        let mut schemas = Vec::new();
        collect::<problem::Body<'_>>(&mut schemas);
        components.schemas.extend(schemas);
        let bearer = SecurityScheme::Http(HttpScheme::new(HttpAuthScheme::Bearer));
        let schemes = &mut components.security_schemes;
        schemes.insert("bearer".into(), bearer.into());
        let mut info = Info::new("oncegate", env!("CARGO_PKG_VERSION"));
        info.description = Some(
            "One intent, at most one side effect. Failures are RFC 9457 problems; each type is a page below /problems.".into(),
        );
        let mut document = OpenApi::new(info, paths);
        document.components = Some(components);
        document
    }

    /// A GET route, guarded if tokens are configured.
    pub(super) fn get(path: &str, id: &str, summary: &str) -> Self {
        Self::open(path, id, summary).guarded()
    }

    /// A POST route, guarded if tokens are configured.
    pub(super) fn post(path: &str, id: &str, summary: &str) -> Self {
        let door = Self::open(path, id, summary).guarded();
        Self {
            method: HttpMethod::Post,
            ..door
        }
    }

    /// A GET route without a token.
    pub(super) fn open(path: &str, id: &str, summary: &str) -> Self {
        let operation = OperationBuilder::new()
            .operation_id(Some(id))
            .summary(Some(summary));
        Self {
            path: path.to_owned(),
            method: HttpMethod::Get,
            operation,
            schemas: Vec::new(),
            problems: BTreeMap::new(),
            speaks_json_rpc: false,
        }
    }

    fn guarded(mut self) -> Self {
        let bearer = SecurityRequirement::new("bearer", Vec::<String>::new());
        self.operation = self
            .operation
            .security(bearer)
            .security(SecurityRequirement::default());
        self.problems(&AT_EVERY_DOOR)
    }

    pub(super) fn path(self, name: &str, description: &str) -> Self {
        let schema = text().min_length(Some(1));
        self.param(ParameterIn::Path, name, description, schema)
    }

    pub(super) fn call_headers(self) -> Self {
        let key = text().pattern(Some(r#"^([!#-~][!-~]{0,254}|"[!#-\[\]-~]{1,255}")$"#));
        let about_key = "The call's key: 1 to 255 characters of ASCII 0x21 to 0x7E, bare or as a quoted string.";
        let about_wait = "wait=SECONDS (at most 60) and respond-async (RFC 7240).";
        let about_trace = "Its trace id becomes the call's (W3C Trace Context); the tool gets it with the sampled flag, and tracestate.";
        self.param(
            ParameterIn::Header,
            &title(&IDEMPOTENCY_KEY),
            about_key,
            key,
        )
        .param(ParameterIn::Header, "Prefer", about_wait, text())
        .param(ParameterIn::Header, "traceparent", about_trace, text())
    }

    fn param(
        mut self,
        place: ParameterIn,
        name: &str,
        description: &str,
        schema: ObjectBuilder,
    ) -> Self {
        let required = match place {
            ParameterIn::Path => Required::True,
            _ => Required::False,
        };
        let parameter = ParameterBuilder::new()
            .parameter_in(place)
            .required(required)
            .name(name)
            .description(Some(description))
            .schema(Some(schema.build()));
        self.operation = self.operation.parameter(parameter);
        self
    }

    pub(super) fn params<T: IntoParams>(mut self) -> Self {
        let parameters: Vec<Parameter> = T::into_params(|| Some(ParameterIn::Query));
        self.operation = self.operation.parameters(Some(parameters));
        self
    }

    pub(super) fn body<T: ToSchema>(self) -> Self {
        self.body_that_is::<T>(Required::True)
    }

    pub(super) fn optional_body<T: ToSchema>(self) -> Self {
        self.body_that_is::<T>(Required::False)
    }

    fn body_that_is<T: ToSchema>(mut self, required: Required) -> Self {
        collect::<T>(&mut self.schemas);
        let body = RequestBodyBuilder::new()
            .content("application/json", refer::<T>())
            .required(Some(required));
        self.operation = self.operation.request_body(Some(body.build()));
        self.problems(&OF_A_BODY)
    }

    pub(super) fn problems(mut self, slugs: &[Slug]) -> Self {
        for slug in slugs {
            let slugs = self.problems.entry(slug.row().status.as_u16()).or_default();
            if !slugs.contains(slug) {
                slugs.push(*slug);
            }
        }
        self
    }

    /// A list that is read page by page.
    pub(super) fn page<P: IntoParams, T: ToSchema>(self, description: &str) -> Self {
        self.params::<P>()
            .problems(&[Slug::InvalidRequest, Slug::StoreUnavailable])
            .json::<T>(description)
    }

    pub(super) fn json<T: ToSchema>(self, description: &str) -> Self {
        self.json_with::<T>(200, description, &[])
    }

    pub(super) fn json_with<T: ToSchema>(
        mut self,
        status: u16,
        description: &str,
        headers: &[&HeaderName],
    ) -> Self {
        collect::<T>(&mut self.schemas);
        let answer = described(description).content("application/json", refer::<T>());
        let header = |answer: ResponseBuilder, name: &&HeaderName| {
            answer.header(title(name), Header::default())
        };
        self.answer(status, headers.iter().fold(answer, header))
    }

    /// The request and the answers of an act on many calls or sagas.
    pub(super) fn on_many<B: ToSchema, T: ToSchema>(self) -> Self {
        self.body::<B>()
            .problems(&[
                Slug::NotConfirmed,
                Slug::StoreUnavailable,
                Slug::ShuttingDown,
            ])
            .json_or_lines::<T>(
                "Without `confirm` the targets of the act; with it one line for each target as it is done, and totals as the last line.",
            )
    }

    pub(super) fn json_or_lines<T: ToSchema>(mut self, description: &str) -> Self {
        collect::<T>(&mut self.schemas);
        let answer = described(description)
            .content("application/json", refer::<T>())
            .content(listing::NDJSON, any(Type::String));
        self.answer(200, answer)
    }

    /// The request and the answers of a route whose requests are JSON-RPC messages.
    pub(super) fn json_rpc<T: ToSchema>(mut self) -> Self {
        self.speaks_json_rpc = true;
        for status in RPC_ERRORS {
            self.problems.entry(status).or_default();
        }
        let answer = described(
            "The result of a request, or an error of JSON-RPC; of a long call a stream of events.",
        )
        .content("application/json", any(Type::Object))
        .content("text/event-stream", any(Type::String));
        self.body::<T>()
            .problems(&[Slug::StoreUnavailable, Slug::ShuttingDown])
            .answer(200, answer)
            .answer(202, described("A notification was taken."))
    }

    pub(super) fn any_json(self, description: &str) -> Self {
        let answer = described(description);
        self.answer(200, answer.content("application/json", any(Type::Object)))
    }

    pub(super) fn text(self, content_type: &str, description: &str) -> Self {
        let answer = described(description);
        self.answer(200, answer.content(content_type, any(Type::String)))
    }

    fn answer(mut self, status: u16, answer: ResponseBuilder) -> Self {
        self.operation = self.operation.response(status.to_string(), answer);
        self
    }
}

fn problem_response(slugs: &[Slug], is_rpc: bool) -> ResponseBuilder {
    let named = slugs
        .iter()
        .map(|slug| format!("`{}`: {}.", slug.as_str(), slug.row().title));
    let rpc = is_rpc.then(|| "An error of JSON-RPC.".to_owned());
    let named: Vec<String> = named.chain(rpc).collect();
    let mut response = described(&named.join(" "));
    if is_rpc {
        response = response.content("application/json", any(Type::Object));
    }
    let wait = Header::new(Object::with_type(Type::Integer));
    response = response
        .content("application/problem+json", refer::<problem::Body<'_>>())
        .header(title(&GATEWAY_OUTCOME), Header::default())
        .header(title(&RETRY_AFTER), wait);
    if slugs.contains(&Slug::Unauthenticated) {
        response = response.header(title(&WWW_AUTHENTICATE), Header::default());
    }
    response
}

fn described(description: &str) -> ResponseBuilder {
    ResponseBuilder::new().description(description)
}

fn text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

fn any(of: Type) -> Content {
    Content::new(Some(Object::with_type(of)))
}

fn refer<T: ToSchema>() -> Content {
    Content::new(Some(Ref::from_schema_name(T::name())))
}

fn collect<T: ToSchema>(schemas: &mut Vec<(String, RefOr<Schema>)>) {
    schemas.push((T::name().into_owned(), T::schema()));
    T::schemas(schemas);
}
