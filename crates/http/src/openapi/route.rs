//! One route: its handler, and its entry in the OpenAPI document.

use std::collections::BTreeMap;

use axum::Extension;
use axum::handler::Handler;
use axum::http::HeaderName;
use axum::http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use axum::routing::{MethodFilter, MethodRouter, on};
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

use crate::Http;
use crate::headers::{GATEWAY_OUTCOME, IDEMPOTENCY_KEY, NDJSON, title};
use crate::problem::{self, Slug};
use crate::read::Reason;

/// Problems that any guarded route may answer with.
const OF_A_GUARDED_ROUTE: [Slug; 3] = [Slug::Unauthenticated, Slug::Forbidden, Slug::RateLimited];
/// Problems of a request's body.
const OF_A_BODY: [Slug; 3] = [
    Slug::InvalidRequest,
    Slug::RequestTimeout,
    Slug::BodyTooLarge,
];

/// One route, declared once: its method and path, its handler, and what the document says of its requests and answers.
///
/// `S`: what its handler shares with others; a wing may have more than [`Http`].
pub struct Route<S = Http> {
    handler: MethodRouter<S>,
    entry: Entry,
}

/// The entry of a route in the document. What it says is only made when the document is asked for: few gateways are ever asked.
pub(crate) struct Entry {
    path: &'static str,
    method: HttpMethod,
    says: Vec<Step>,
    problems: BTreeMap<u16, Vec<Slug>>,
    speaks_json_rpc: bool,
}

/// Adds one thing to an operation, and the schemas that it names.
type Step = Box<dyn FnOnce(OperationBuilder, &mut Schemas) -> OperationBuilder + Send>;
type Schemas = Vec<(String, RefOr<Schema>)>;

/// Statuses that errors of JSON-RPC also have.
const RPC_ERRORS: [u16; 2] = [400, 404];

impl<S: Clone + Send + Sync + 'static> Route<S> {
    /// A GET route, guarded if tokens are configured.
    pub fn get<T: 'static>(
        path: &'static str,
        id: &'static str,
        summary: &'static str,
        handler: impl Handler<T, S>,
    ) -> Self {
        Self::open(path, id, summary, handler).guarded()
    }

    /// A POST route, guarded if tokens are configured.
    pub fn post<T: 'static>(
        path: &'static str,
        id: &'static str,
        summary: &'static str,
        handler: impl Handler<T, S>,
    ) -> Self {
        let handler = on(MethodFilter::POST, handler);
        let route = Self {
            handler,
            entry: Entry::new(path, HttpMethod::Post, id, summary),
        };
        route.guarded()
    }

    /// A DELETE route, guarded if tokens are configured.
    pub fn delete<T: 'static>(
        path: &'static str,
        id: &'static str,
        summary: &'static str,
        handler: impl Handler<T, S>,
    ) -> Self {
        let handler = on(MethodFilter::DELETE, handler);
        let route = Self {
            handler,
            entry: Entry::new(path, HttpMethod::Delete, id, summary),
        };
        route.guarded()
    }

    /// A POST route by which an operator acts: it needs a reason, and a state that allows it.
    pub fn act<T: 'static>(
        path: &'static str,
        id: &'static str,
        summary: &'static str,
        handler: impl Handler<T, S>,
    ) -> Self {
        Self::post(path, id, summary, handler)
            .body::<Reason>()
            .problems(&[Slug::WrongState])
    }

    /// A GET route without a token.
    pub fn open<T: 'static>(
        path: &'static str,
        id: &'static str,
        summary: &'static str,
        handler: impl Handler<T, S>,
    ) -> Self {
        Self {
            handler: on(MethodFilter::GET, handler),
            entry: Entry::new(path, HttpMethod::Get, id, summary),
        }
    }

    /// Gives the handler what it shares.
    pub fn with_state(self, state: S) -> Route {
        Route {
            handler: self.handler.with_state(state),
            entry: self.entry,
        }
    }

    /// Gives the handler a service, as an `Extension`.
    #[must_use]
    pub fn with<T: Clone + Send + Sync + 'static>(self, service: T) -> Self {
        Self {
            handler: self.handler.layer(Extension(service)),
            ..self
        }
    }

    /// The path, the handler, and the entry in the document.
    pub(crate) fn split(self) -> (&'static str, MethodRouter<S>, Entry) {
        (self.entry.path, self.handler, self.entry)
    }

    fn guarded(self) -> Self {
        self.says(|operation, _| {
            let bearer = SecurityRequirement::new("bearer", Vec::<String>::new());
            operation
                .security(bearer)
                .security(SecurityRequirement::default())
        })
        .problems(&OF_A_GUARDED_ROUTE)
    }

    fn says(
        mut self,
        step: impl FnOnce(OperationBuilder, &mut Schemas) -> OperationBuilder + Send + 'static,
    ) -> Self {
        self.entry.says.push(Box::new(step));
        self
    }

    pub fn path(self, name: &'static str, description: &'static str) -> Self {
        let schema = || text().min_length(Some(1));
        self.param(ParameterIn::Path, name, description, schema)
    }

    pub fn call_headers(self) -> Self {
        let key = || text().pattern(Some(r#"^([!#-~][!-~]{0,254}|"[!#-\[\]-~]{1,255}")$"#));
        let about_key = "The call's key: 1 to 255 characters of ASCII 0x21 to 0x7E, bare or as a quoted string.";
        let about_wait = "wait=SECONDS (at most 60) and respond-async (RFC 7240).";
        let about_trace = "Its trace id becomes the call's (W3C Trace Context); the tool gets it with the sampled flag, and tracestate.";
        self.param(ParameterIn::Header, title(&IDEMPOTENCY_KEY), about_key, key)
            .param(ParameterIn::Header, "Prefer", about_wait, text)
            .param(ParameterIn::Header, "traceparent", about_trace, text)
    }

    fn param(
        self,
        place: ParameterIn,
        name: impl Into<String> + Send + 'static,
        description: &'static str,
        schema: fn() -> ObjectBuilder,
    ) -> Self {
        self.says(move |operation, _| {
            let required = match place {
                ParameterIn::Path => Required::True,
                _ => Required::False,
            };
            let parameter = ParameterBuilder::new()
                .parameter_in(place)
                .required(required)
                .name(name)
                .description(Some(description))
                .schema(Some(schema().build()));
            operation.parameter(parameter)
        })
    }

    pub fn params<T: IntoParams + 'static>(self) -> Self {
        self.says(|operation, _| {
            let parameters: Vec<Parameter> = T::into_params(|| Some(ParameterIn::Query));
            operation.parameters(Some(parameters))
        })
    }

    pub fn body<T: ToSchema + 'static>(self) -> Self {
        self.body_that_is::<T>(Required::True)
    }

    pub fn optional_body<T: ToSchema + 'static>(self) -> Self {
        self.body_that_is::<T>(Required::False)
    }

    fn body_that_is<T: ToSchema + 'static>(self, required: Required) -> Self {
        self.says(move |operation, schemas| {
            collect::<T>(schemas);
            let body = RequestBodyBuilder::new()
                .content("application/json", refer::<T>())
                .required(Some(required));
            operation.request_body(Some(body.build()))
        })
        .problems(&OF_A_BODY)
    }

    pub fn problems(mut self, slugs: &[Slug]) -> Self {
        for slug in slugs {
            let slugs = self
                .entry
                .problems
                .entry(slug.row().status.as_u16())
                .or_default();
            if !slugs.contains(slug) {
                slugs.push(*slug);
            }
        }
        self
    }

    /// A route about one stored thing, which the path names.
    pub fn of_one(self) -> Self {
        self.problems(&[Slug::UnknownPath, Slug::StoreUnavailable])
    }

    /// A list that is read page by page.
    pub fn page<P: IntoParams + 'static, T: ToSchema + 'static>(
        self,
        description: &'static str,
    ) -> Self {
        self.params::<P>()
            .problems(&[Slug::InvalidRequest, Slug::StoreUnavailable])
            .json::<T>(description)
    }

    pub fn json<T: ToSchema + 'static>(self, description: &'static str) -> Self {
        self.json_with::<T>(200, description, &[])
    }

    pub fn json_with<T: ToSchema + 'static>(
        self,
        status: u16,
        description: &'static str,
        headers: &[&HeaderName],
    ) -> Self {
        let headers: Vec<String> = headers.iter().map(|name| title(name)).collect();
        self.answer(status, move |schemas| {
            collect::<T>(schemas);
            let answer = described(description).content("application/json", refer::<T>());
            let header = |answer: ResponseBuilder, name| answer.header(name, Header::default());
            headers.into_iter().fold(answer, header)
        })
    }

    /// The request and the answers of an act on many calls or sagas.
    pub fn on_many<B: ToSchema + 'static, T: ToSchema + 'static>(self) -> Self {
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

    pub fn json_or_lines<T: ToSchema + 'static>(self, description: &'static str) -> Self {
        self.answer(200, move |schemas| {
            collect::<T>(schemas);
            described(description)
                .content("application/json", refer::<T>())
                .content(NDJSON, any(Type::String))
        })
    }

    /// The request and the answers of a route whose requests are JSON-RPC messages.
    pub fn json_rpc<T: ToSchema + 'static>(mut self) -> Self {
        self.entry.speaks_json_rpc = true;
        for status in RPC_ERRORS {
            self.entry.problems.entry(status).or_default();
        }
        self.body::<T>()
            .problems(&[Slug::StoreUnavailable, Slug::ShuttingDown])
            .answer(200, |_| {
                described(
                    "The result of a request, or an error of JSON-RPC; of a long call a stream of events.",
                )
                .content("application/json", any(Type::Object))
                .content("text/event-stream", any(Type::String))
            })
            .answer(202, |_| described("A notification was taken."))
    }

    pub fn any_json(self, description: &'static str) -> Self {
        self.answer(200, move |_| {
            described(description).content("application/json", any(Type::Object))
        })
    }

    pub fn text(self, content_type: &'static str, description: &'static str) -> Self {
        self.answer(200, move |_| {
            described(description).content(content_type, any(Type::String))
        })
    }

    fn answer(
        self,
        status: u16,
        answer: impl FnOnce(&mut Schemas) -> ResponseBuilder + Send + 'static,
    ) -> Self {
        self.says(move |operation, schemas| operation.response(status.to_string(), answer(schemas)))
    }
}

impl Entry {
    fn new(
        path: &'static str,
        method: HttpMethod,
        id: &'static str,
        summary: &'static str,
    ) -> Self {
        let named = move |operation: OperationBuilder, _: &mut Schemas| {
            operation.operation_id(Some(id)).summary(Some(summary))
        };
        Self {
            path,
            method,
            says: vec![Box::new(named)],
            problems: BTreeMap::new(),
            speaks_json_rpc: false,
        }
    }

    /// The document of all these routes.
    pub(crate) fn document(entries: impl IntoIterator<Item = Self>) -> OpenApi {
        let (mut paths, mut components) = (Paths::default(), Components::default());
        for entry in entries {
            let mut schemas = Schemas::new();
            let said = entry.says.into_iter();
            let mut operation = said.fold(OperationBuilder::new(), |operation, step| {
                step(operation, &mut schemas)
            });
            for (status, slugs) in entry.problems {
                let is_rpc = entry.speaks_json_rpc && RPC_ERRORS.contains(&status);
                operation =
                    operation.response(status.to_string(), problem_response(&slugs, is_rpc));
            }
            paths.add_path_operation(entry.path, vec![entry.method], operation.build());
            components.schemas.extend(schemas);
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

fn collect<T: ToSchema>(schemas: &mut Schemas) {
    schemas.push((T::name().into_owned(), T::schema()));
    T::schemas(schemas);
}
