//! An operator with a browser, as far as the console can tell: cookies, forms and nothing else.

use super::{Answer, Gateway, client};

pub struct Browser {
    client: reqwest::Client,
    base: String,
    /// As the browser sends it; empty where the gateway has no tokens.
    pub cookie: String,
}

impl Browser {
    /// Signs in with a token; without tokens there is nothing to sign in to.
    pub async fn sign_in(gateway: &Gateway, token: &str) -> Self {
        let signed = try_to_sign_in(gateway, token).await;
        assert_eq!(signed.status, 303, "{}", signed.text);
        let cookie = signed.header("set-cookie").split(';').next();
        Self::with_cookie(gateway, cookie.expect("a cookie"))
    }

    pub fn with_cookie(gateway: &Gateway, cookie: &str) -> Self {
        Self {
            client: client(),
            base: gateway.url(""),
            cookie: cookie.to_owned(),
        }
    }

    /// The request for a page.
    pub fn request(&self, path: &str) -> reqwest::RequestBuilder {
        let request = self.client.get(format!("{}{path}", self.base));
        request.header("cookie", &self.cookie)
    }

    pub async fn see(&self, path: &str) -> Answer {
        Answer::to(self.request(path)).await
    }

    /// The token that the forms of this session have.
    pub async fn form_token(&self) -> String {
        // Who may not act has the form to sign out.
        let page = self.see("/console/session?id=S").await;
        hidden(&page.expect_ok().text, "form").expect("a token")
    }

    /// What the forms of a page say about what it shows.
    pub async fn seen(&self, path: &str) -> String {
        hidden(&self.see(path).await.text, "seen").unwrap_or_default()
    }

    /// Sends a form as a page of the gateway would.
    pub async fn submit(&self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let token = self.form_token().await;
        let mut all = vec![("form", token.as_str())];
        all.extend_from_slice(fields);
        Answer::to(self.form(path, &all)).await
    }

    /// A form with exactly these fields.
    pub fn form(&self, path: &str, fields: &[(&str, &str)]) -> reqwest::RequestBuilder {
        let request = self.client.post(format!("{}{path}", self.base));
        request.header("cookie", &self.cookie).body(encoded(fields))
    }
}

/// The hidden field of a page's first form.
pub fn hidden(page: &str, name: &str) -> Option<String> {
    let after = page.split(&format!("name=\"{name}\" value=\"")).nth(1)?;
    after.split('"').next().map(str::to_owned)
}

pub fn encoded(fields: &[(&str, &str)]) -> String {
    let mut body = form_urlencoded::Serializer::new(String::new());
    body.extend_pairs(fields);
    body.finish()
}

/// What the form to sign in answers.
pub async fn try_to_sign_in(gateway: &Gateway, token: &str) -> Answer {
    let body = encoded(&[("token", token), ("next", "/console/calls?state=unknown")]);
    let form = client().post(gateway.url("/console/sign-in"));
    Answer::to(form.body(body)).await
}
