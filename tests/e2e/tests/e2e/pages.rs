//! What partners read on the service itself: the pages, and the links of errors to them.

use crate::shop::open;
use anyhow::{Context, Result};
use serde_json::Value;
use testkit::{stack::Stack, workspace};

/// The body of a page, and its value of a header.
async fn page(url: &str, header: &str) -> Result<(String, String)> {
    let answer = testkit::http::client()?
        .get(url)
        .send()
        .await?
        .error_for_status()?;
    let value = answer.headers().get(header).context(header.to_owned())?;
    let value = value.to_str()?.to_owned();
    Ok((answer.text().await?, value))
}

#[tokio::test]
async fn the_openapi_document_is_served() {
    let stack = Stack::start().await.unwrap();
    let (served, kind) = page(&format!("{}/openapi.json", stack.base_url), "content-type")
        .await
        .unwrap();
    let stored = std::fs::read_to_string(workspace().join("docs/openapi.json")).unwrap();
    assert_eq!((served, kind.as_str()), (stored, "application/json"));
}

#[tokio::test]
async fn an_error_links_its_section_of_the_page() {
    let (stack, shop) = open().await;
    let unsigned = testkit::http::client().unwrap();
    let unsigned = unsigned
        .get(format!("{}/nowhere", stack.base_url))
        .send()
        .await
        .unwrap();
    let several = shop.client.post(r#"{"products": 7}"#).send().await.unwrap();
    let headers = [
        (
            "not_found",
            unsigned.headers()["link"].to_str().unwrap().to_owned(),
        ),
        (
            "external_order_id_blank",
            several.headers["link"].to_str().unwrap().to_owned(),
        ),
        (
            "products_invalid",
            several.headers["link"].to_str().unwrap().to_owned(),
        ),
    ];
    for (code, links) in headers {
        let url = format!("{}/errors#{code}", stack.base_url);
        assert!(
            links.contains(&format!("<{url}>; rel=\"help\"")),
            "{code}: {links}"
        );
        let (page, policy) = page(&url, "content-security-policy").await.unwrap();
        assert!(page.contains(&format!("<h2 id=\"{code}\">")), "{code}");
        assert!(policy.starts_with("default-src 'none'"), "{policy}");
    }
}

#[tokio::test]
async fn the_pages_are_those_of_the_brand() {
    let stack = Stack::builder()
        .env(testkit::stack::Stage::Ingress, "BRAND", "Acme")
        .start()
        .await
        .unwrap();
    for route in [
        "openapi.json",
        "partner-guide.md",
        "partner-reference.md",
        "llms.txt",
        "llms-full.txt",
        "errors",
        "examples/esim.py",
    ] {
        let (text, _) = page(
            &format!("{}/{route}", stack.base_url),
            "x-content-type-options",
        )
        .await
        .unwrap();
        assert!(
            text.contains("X-Acme-") && !text.contains("X-Service-"),
            "{route}"
        );
    }
    let document: Value = {
        let (text, _) = page(&format!("{}/openapi.json", stack.base_url), "content-type")
            .await
            .unwrap();
        serde_json::from_str(&text).unwrap()
    };
    assert_eq!(
        document["components"]["securitySchemes"]["signature"]["name"],
        "X-Acme-Signature"
    );
}
