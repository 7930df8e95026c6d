//! How the document of the doors is put together: what a door takes, and what it answers.

use std::collections::BTreeMap;

use axum::http::HeaderName;
use axum::http::header::{LOCATION, RETRY_AFTER, WWW_AUTHENTICATE};
use utoipa::openapi::header::Header;
use utoipa::openapi::path::{
    HttpMethod, Operation, OperationBuilder, Parameter, ParameterBuilder, ParameterIn,
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

use crate::http::calls::{CALL_ID, FENCING_TOKEN, GATEWAY_OUTCOME, IDEMPOTENCY_KEY};
use crate::http::listing;
use crate::http::problem::{self, Slug};
use crate::http::tools::title;

/// Problems that any door may answer with, for a token or for want of one.
const AT_EVERY_DOOR: [Slug; 3] = [Slug::Unauthenticated, Slug::Forbidden, Slug::RateLimited];
/// What is said of a request's body.
const OF_A_BODY: [Slug; 3] = [
    Slug::InvalidRequest,
    Slug::RequestTimeout,
    Slug::BodyTooLarge,
];

/// The document, as it grows.
#[derive(Default)]
pub(super) struct Document {
    paths: Paths,
    components: Components,
}

impl Document {
    pub(super) fn add(&mut self, door: Door, method: HttpMethod, path: &str) {
        let (operation, schemas) = door.finish();
        self.paths.add_path_operation(path, vec![method], operation);
        self.components.schemas.extend(schemas);
    }

    pub(super) fn finish(mut self) -> OpenApi {
        let bearer = SecurityScheme::Http(HttpScheme::new(HttpAuthScheme::Bearer));
        self.components
            .security_schemes
            .insert("bearer".into(), bearer.into());
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
pub(super) struct Door {
    operation: OperationBuilder,
    schemas: Vec<(String, RefOr<Schema>)>,
    problems: BTreeMap<u16, Vec<Slug>>,
}

impl Door {
    /// A door that asks who is there, if tokens are configured at all.
    pub(super) fn of(id: &str, summary: &str) -> Self {
        let bearer = SecurityRequirement::new("bearer", Vec::<String>::new());
        let mut door = Self::open(id, summary).problems(&AT_EVERY_DOOR);
        door.operation = door
            .operation
            .security(bearer)
            .security(SecurityRequirement::default());
        door
    }

    /// A door for everybody.
    pub(super) fn open(id: &str, summary: &str) -> Self {
        let operation = OperationBuilder::new()
            .operation_id(Some(id))
            .summary(Some(summary));
        Self {
            operation,
            schemas: Vec::new(),
            problems: BTreeMap::new(),
        }
    }

    pub(super) fn path(self, name: &str, description: &str) -> Self {
        let schema = ObjectBuilder::new()
            .schema_type(Type::String)
            .min_length(Some(1));
        self.param(
            name,
            ParameterIn::Path,
            Required::True,
            description,
            schema.build(),
        )
    }

    pub(super) fn call_headers(self) -> Self {
        let plain = || ObjectBuilder::new().schema_type(Type::String);
        let key = plain()
            .pattern(Some(r#"^([!#-~][!-~]{0,254}|"[!#-\[\]-~]{1,255}")$"#))
            .build();
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
        let parameter = ParameterBuilder::new()
            .name(name)
            .parameter_in(place)
            .required(required);
        let parameter = parameter
            .description(Some(description))
            .schema(Some(schema));
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

    pub(super) fn body_that_is<T: ToSchema>(mut self, required: Required) -> Self {
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

    pub(super) fn json<T: ToSchema>(self, description: &str, headers: &[&HeaderName]) -> Self {
        self.json_at::<T>(200, description, headers)
    }

    pub(super) fn json_at<T: ToSchema>(
        mut self,
        status: u16,
        description: &str,
        headers: &[&HeaderName],
    ) -> Self {
        collect::<T>(&mut self.schemas);
        let response = ResponseBuilder::new()
            .description(description)
            .content("application/json", refer::<T>());
        let response = headers.iter().fold(response, |response, name| {
            response.header(title(name.as_str()), Header::default())
        });
        self.operation = self.operation.response(status.to_string(), response);
        self
    }

    pub(super) fn json_or_lines<T: ToSchema>(mut self, description: &str) -> Self {
        collect::<T>(&mut self.schemas);
        let lines = Content::new(Some(Object::with_type(Type::String)));
        let response = ResponseBuilder::new().description(description);
        let response = response
            .content("application/json", refer::<T>())
            .content(listing::NDJSON, lines);
        self.operation = self.operation.response("200", response);
        self
    }

    /// 202, with the place to ask at.
    pub(super) fn accepted<T: ToSchema>(self) -> Self {
        self.json_at::<T>(
            202,
            "The call runs; ask for it at Location.",
            &[
                &LOCATION,
                &IDEMPOTENCY_KEY,
                &CALL_ID,
                &GATEWAY_OUTCOME,
                &FENCING_TOKEN,
            ],
        )
    }

    pub(super) fn any_json(mut self, description: &str) -> Self {
        let response = ResponseBuilder::new().description(description);
        let response = response.content(
            "application/json",
            Content::new(Some(Object::with_type(Type::Object))),
        );
        self.operation = self.operation.response("200", response);
        self
    }

    pub(super) fn text(mut self, content_type: &str, description: &str) -> Self {
        let content = Content::new(Some(Object::with_type(Type::String)));
        let response = ResponseBuilder::new()
            .description(description)
            .content(content_type, content);
        self.operation = self.operation.response("200", response);
        self
    }

    fn finish(self) -> (Operation, Vec<(String, RefOr<Schema>)>) {
        let responses = self
            .problems
            .iter()
            .map(|(status, slugs)| (status.to_string(), problem_response(slugs)));
        let operation = responses.fold(self.operation, |operation, (status, response)| {
            operation.response(status, response)
        });
        (operation.build(), self.schemas)
    }
}

fn problem_response(slugs: &[Slug]) -> ResponseBuilder {
    let named: Vec<String> = slugs
        .iter()
        .map(|slug| format!("`{}`: {}.", slug.as_str(), slug.row().title))
        .collect();
    let response = ResponseBuilder::new()
        .description(named.join(" "))
        .content("application/problem+json", refer::<problem::Body<'_>>())
        .header(title(GATEWAY_OUTCOME.as_str()), Header::default())
        .header(
            title(RETRY_AFTER.as_str()),
            Header::new(Object::with_type(Type::Integer)),
        );
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
