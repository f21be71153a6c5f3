//! Logging in with real Gitea, through nginx, at an API server that comes to trust it by the text of the refusal.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Mutex, PoisonError},
};

use anyhow::{Context as _, Result, ensure};
use crds::names;
use harness::{
    cluster::pki::{Identity, Pki},
    wait,
};
use kube::ResourceExt as _;
use reqwest::{Certificate, Client, Method, Url, header, redirect::Policy};
use serde_json::{Value, json};
use servers::{gitea::Gitea, nginx};
use web_console::settings::Settings;

use super::{api_server, ingress::Behind, read};
use crate::world::{PATIENCE, World, plan, sum, tests};

tests! {
    Newer: gitea_person_acts_behind_nginx_once_the_issuer_is_trusted,
}

const PASSWORD: &str = "correct horse";

/// A browser, with the cookies of its one host.
struct Browser {
    http: Client,
    jar: Mutex<BTreeMap<String, String>>,
}

/// Where a browser ended.
#[derive(Debug)]
struct End {
    code: u16,
    url: String,
    text: String,
}

impl Browser {
    fn new(authorities: &[&str]) -> Result<Self> {
        let authorities = authorities
            .iter()
            .map(|pem| Certificate::from_pem(pem.as_bytes()));
        let authorities = authorities.collect::<reqwest::Result<Vec<_>>>()?;
        Ok(Self {
            http: Client::builder()
                .no_proxy()
                .redirect(Policy::none())
                .tls_certs_merge(authorities)
                .build()?,
            jar: Mutex::default(),
        })
    }

    fn cookies(&self) -> String {
        let jar = self.jar.lock().unwrap_or_else(PoisonError::into_inner);
        let pairs = jar.iter().map(|(name, value)| format!("{name}={value}"));
        pairs.collect::<Vec<_>>().join("; ")
    }

    /// One request: code, location and text.
    async fn send(&self, request: reqwest::RequestBuilder) -> Result<(u16, String, String)> {
        let response = request
            .header(header::COOKIE, self.cookies())
            .send()
            .await?;
        for cookie in response.headers().get_all(header::SET_COOKIE) {
            let (pair, attributes) = cookie.to_str()?.split_once(';').context("no attributes")?;
            let (name, value) = pair.split_once('=').context("no value")?;
            let mut jar = self.jar.lock().unwrap_or_else(PoisonError::into_inner);
            if attributes.contains("Max-Age=0") {
                jar.remove(name);
            } else {
                jar.insert(name.to_owned(), value.to_owned());
            }
        }
        let location = response.headers().get(header::LOCATION);
        let location = location.map_or(Ok(""), |location| location.to_str())?;
        let location = location.to_owned();
        Ok((response.status().as_u16(), location, response.text().await?))
    }

    async fn submit(&self, url: &Url, form: &[(String, String)]) -> Result<(u16, String, String)> {
        let body = Url::parse_with_params("http://a/", form)?;
        let request = self
            .http
            .post(url.clone())
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(body.query().unwrap_or_default().to_owned());
        self.send(request).await
    }

    /// Follows redirects, signs in and consents at the provider, until a page of the console other than those of a login.
    async fn open(&self, url: &str, console: &str, user: &str) -> Result<End> {
        let mut url = Url::parse(url)?;
        let mut answer = self.send(self.http.get(url.clone())).await?;
        for _ in 0..12 {
            let (code, location, text) = &answer;
            if (300..400).contains(code) {
                url = url.join(location)?;
                let is_page =
                    url.as_str().starts_with(console) && !url.path().contains("/login/oidc");
                if is_page {
                    break;
                }
                answer = self.send(self.http.get(url.clone())).await?;
            } else if url.path() == "/user/login" && *code == 200 {
                let of = |name: &str, value: &str| (name.to_owned(), value.to_owned());
                let form = [of("user_name", user), of("password", PASSWORD)];
                answer = self.submit(&url, &form).await?;
                ensure!(answer.0 != 200, "{user} is not signed in: {}", answer.2);
            } else if let Some(form) = text.split("action=\"/login/oauth/grant\"").nth(1) {
                let mut hidden = inputs(form.split("</form>").next().unwrap_or_default());
                hidden.push(("granted".to_owned(), "true".to_owned()));
                url = url.join("/login/oauth/grant")?;
                answer = self.submit(&url, &hidden).await?;
            } else {
                break;
            }
        }
        Ok(End {
            code: answer.0,
            url: url.into(),
            text: answer.2,
        })
    }
}

/// Names and values of a form's hidden fields.
fn inputs(form: &str) -> Vec<(String, String)> {
    let attribute = |input: &str, name: &str| {
        let value = input
            .split(&format!("{name}=\""))
            .nth(1)?
            .split('"')
            .next()?;
        let value = value.replace("&#43;", "+").replace("&#34;", "\"");
        Some(value.replace("&#39;", "'").replace("&amp;", "&"))
    };
    let inputs = form.split("<input").skip(1);
    inputs
        .filter(|input| input.contains("type=\"hidden\""))
        .filter_map(|input| Some((attribute(input, "name")?, attribute(input, "value")?)))
        .collect()
}

/// A team of an organization, with a member.
async fn team(gitea: &Gitea, name: &str, member: &str) -> Result<()> {
    let body = json!({"name": name, "permission": "read", "units": ["repo.code"]});
    let team = gitea
        .api(Method::POST, "orgs/Platform/teams", &body)
        .await?;
    let path = format!("teams/{}/members/{member}", team["id"]);
    gitea.api(Method::PUT, &path, &Value::Null).await.map(drop)
}

async fn gitea_person_acts_behind_nginx_once_the_issuer_is_trusted(world: World) -> Result<()> {
    let Some(tools) = Gitea::tools()? else {
        println!("left out: logins with Gitea (it is not built yet; `PAWL_SUITES=1` builds it)");
        return Ok(());
    };
    let directory = tempfile::tempdir()?;
    let pki = Pki::bare(directory.path(), "forge")?;
    let pair = pki.issue(Identity {
        file: "forge",
        user: "forge",
        group: "forge",
        hosts: &["127.0.0.1"],
    })?;
    let mut gitea = Gitea::start_tls(&tools, "127.0.0.1".parse()?, &pair, &pki.authority()).await?;
    for name in ["ada", "bob"] {
        gitea.person(name, PASSWORD).await?;
    }
    let platform = json!({"username": "Platform"});
    gitea.api(Method::POST, "orgs", &platform).await?;
    team(&gitea, "SRE-Team", "ada").await?;
    let behind = behind(&world, &gitea, directory.path()).await?;
    let open = async |browser: &Browser, next: &str, user: &str| {
        let url = format!("{}/login/oidc?next={next}", behind.url);
        browser.open(&url, &behind.url, user).await
    };
    let browser = || Browser::new(&[&pki.authority(), &behind.authority]);

    // The API server does not trust it. The text that the refusal has to paste is enough.
    let refused = open(&browser()?, "/", "ada").await?;
    ensure!(
        refused.code == 403 && refused.text.starts_with("IssuerNotTrusted"),
        "{refused:?}\n{}",
        gitea.log()
    );
    let yaml = refused
        .text
        .split_once("\n\n")
        .context("no text to paste")?
        .1;
    let pasted: Value = serde_saphyr::from_str(yaml)?;
    ensure!(pasted["kind"] == "AuthenticationConfiguration", "{yaml}");
    let jwt = pasted["jwt"].as_array().context("no issuers")?;
    world.access.trust(jwt)?;
    let ada = browser()?;
    let link = "/runs/a/b%3Fline%3D7%26q%3Da%2520b%23L12";
    let end = wait::until("the API server trusts Gitea", PATIENCE, async || {
        let end = open(&ada, link, "ada").await?;
        let seen = format!("{end:?}");
        Ok((end.code == 303).then_some(end).ok_or(seen))
    })
    .await?;
    ensure!(
        end.url == format!("{}/runs/a/b?line=7&q=a%20b#L12", behind.url),
        "{end:?}"
    );
    let (code, me) = behind.me(&ada.cookies()).await?;
    let (user, groups) = (&me["user"], me["groups"].to_string());
    ensure!(
        code == 200 && user == "oidc:2" && groups.contains("\"oidc:Platform:sre-team\""),
        "{code} {me}"
    );
    ensure!(me["method"] == "Oidc", "{me}");

    acts(&world, &behind, &ada).await?;
    tabs_and_devices(&behind, browser, "ada").await?;

    // A link as long as one may be, and groups that fill the proxy's buffer.
    let next = format!("/runs?q={}", "a".repeat(990));
    for number in 0..3 {
        team(&gitea, &format!("{number}-{}", noise(240)), "bob").await?;
    }
    let bob = browser()?;
    let end = open(&bob, &next, "bob").await?;
    let (code, me) = behind.me(&bob.cookies()).await?;
    ensure!(
        end.code == 303 && end.url == format!("{}{next}", behind.url) && code == 200,
        "{end:?} {me}\n{}",
        behind.nginx.log()
    );
    for number in 3..14 {
        team(&gitea, &format!("{number}-{}", noise(240)), "bob").await?;
    }
    let end = open(&browser()?, &next, "bob").await?;
    ensure!(
        end.code == 413 && end.text.contains("proxy-buffer-size: 16k"),
        "{end:?}\n{}",
        behind.nginx.log()
    );

    // The name changes, the person does not.
    let renamed = json!({"new_username": "ada-lovelace"});
    gitea
        .api(Method::POST, "admin/users/ada/rename", &renamed)
        .await?;
    let again = browser()?;
    open(&again, "/", "ada-lovelace").await?;
    let (_, me) = behind.me(&again.cookies()).await?;
    ensure!(me["user"] == "oidc:2", "{me}");

    // Without the provider, sessions go on and a login is refused by name; with it, it is as before.
    gitea.kill()?;
    let begin = format!("{}/login/oidc/callback?code=a&state=b", behind.url);
    let end = again.open(&begin, &behind.url, "ada-lovelace").await?;
    ensure!(
        end.code == 303 && behind.me(&again.cookies()).await?.0 == 200,
        "{end:?}"
    );
    let fresh = super::Served::with(&world, behind.served.settings.clone()).await?;
    let begin = fresh.http.get(format!("{}/login/oidc", fresh.url));
    let begin = begin.header("x-forwarded-proto", "https").send().await?;
    let (code, text) = (begin.status(), begin.text().await?);
    ensure!(
        code == 502 && text.starts_with("ProviderUnavailable"),
        "{code} {text}"
    );
    gitea.restart().await?;
    let end = open(&browser()?, "/", "ada-lovelace").await?;
    ensure!(
        end.code == 303 && end.url == format!("{}/", behind.url),
        "{end:?}"
    );
    Ok(())
}

fn noise(length: usize) -> String {
    (0..length)
        .map(|_| char::from(b"0123456789abcdef"[rand::random_range(0..16)]))
        .collect()
}

/// A console behind nginx, with a client at this Gitea.
async fn behind(world: &World, gitea: &Gitea, directory: &Path) -> Result<Behind> {
    let proxy = nginx::Settings::default();
    let set = async |settings: &mut Settings| -> Result<()> {
        let callback = format!("{}/login/oidc/callback", settings.url);
        let (id, word) = gitea.client(&callback).await?;
        let secret = directory.join("secret");
        std::fs::write(&secret, word)?;
        settings.oidc_issuer = Some(gitea.url().to_owned());
        settings.oidc_client_id = Some(id);
        settings.oidc_client_secret_file = Some(secret);
        settings.oidc_ca = Some(directory.join("ca.crt"));
        settings.oidc_scopes = ["profile", "email", "groups"].map(str::to_owned).into();
        Ok(())
    };
    Behind::with(world, proxy, api_server(world).await?, set).await
}

/// Approves a run as the person, by a right of her team. Before, the API server refuses it.
async fn acts(world: &World, behind: &Behind, ada: &Browser) -> Result<()> {
    let namespace = world.namespace().await?;
    world.create(&namespace, "waits", &json!({})).await?;
    world
        .status(&namespace, "waits", &json!({"phase": "Pending"}))
        .await?;
    let agent = world.open(&namespace, "waits", 1).await?;
    agent.plans(1).await?;
    let waits = json!({"phase": "AwaitingApproval", "plan": plan(1, 'a')});
    agent.status(&waits).await?;
    let path = format!("namespaces/{namespace}/runs/waits/acts/approve");
    let approve = async || {
        let body = json!({"checksum": sum('a'), "comment": "by Gitea"});
        let request = behind.change(&path, &body);
        read(request.header(header::COOKIE, ada.cookies()).send().await?).await
    };
    let (code, refused) = approve().await?;
    let words = refused["detail"].as_str().unwrap_or_default();
    ensure!(
        code == 403 && words.contains("User \"oidc:2\" cannot"),
        "{code} {refused}"
    );
    let team = json!({"kind": "Group", "name": "oidc:Platform:sre-team"});
    world.bind(&namespace, "pawl-approver", &team).await?;
    wait::until("the team may approve", PATIENCE, async || {
        let (code, answer) = approve().await?;
        Ok((code == 200).then_some(()).ok_or(answer))
    })
    .await?;
    let run = world.runs(&namespace).get("waits").await?;
    let by = run.annotations().get(names::APPROVED_BY);
    ensure!(
        by.map(String::as_str) == Some("oidc:2"),
        "{:?}",
        run.metadata
    );
    Ok(())
}

/// Two logins at a time: in two tabs of a browser, and in two browsers, where Gitea answers both with the nonce of the later one.
async fn tabs_and_devices(
    behind: &Behind,
    browser: impl Fn() -> Result<Browser>,
    user: &str,
) -> Result<()> {
    let begin = async |browser: &Browser| -> Result<String> {
        let url = format!("{}/login/oidc?next=/runs", behind.url);
        let (code, there, text) = browser.send(browser.http.get(url)).await?;
        ensure!(code == 303, "{code} {text}");
        // The person is signed in there, and consented.
        let (code, back, text) = browser.send(browser.http.get(there)).await?;
        ensure!((300..400).contains(&code), "{code} {text}");
        Ok(back)
    };
    let (one, two) = (browser()?, browser()?);
    let signed_in = async |browser: &Browser| -> Result<()> {
        let url = format!("{}/login/oidc?next=/", behind.url);
        let end = browser.open(&url, &behind.url, user).await?;
        ensure!(end.code == 303, "{end:?}");
        let out = behind.change("logout", &Value::Null);
        let (code, ..) = browser.send(out).await?;
        ensure!(code == 204, "{code}");
        Ok(())
    };
    signed_in(&one).await?;
    signed_in(&two).await?;
    for (first, second) in [(&one, &one), (&one, &two)] {
        let (a, b) = (begin(first).await?, begin(second).await?);
        for (browser, back) in [(first, a), (second, b)] {
            let end = browser.open(&back, &behind.url, user).await?;
            ensure!(
                end.code == 303 && end.url.starts_with(&behind.url) && !end.url.contains("/login"),
                "{end:?}"
            );
            let (code, me) = behind.me(&browser.cookies()).await?;
            ensure!(code == 200 && me["user"] == "oidc:2", "{code} {me}");
        }
        let out = behind.change("logout", &Value::Null);
        first.send(out).await?;
        let out = behind.change("logout", &Value::Null);
        second.send(out).await?;
    }
    Ok(())
}
