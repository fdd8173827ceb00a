//! What the traveller's page shows in each state of the eSIM.
//!
//! Guarantees: the activation code is in the page only while the eSIM may still have to be
//! installed. Nothing is said that is not known: what the provider said about its use has its time,
//! and where a provider says nothing, the page does not say that the eSIM is not installed.

use std::fmt::Write;

use accounts::profile::Profile;
use anyhow::Context;
use askama::Template;
use desk::self_service::{InstallPage, PartnerUnitState};
use domain::{ActivationCode, PageLanguage, Shop};
use fast_qr::{ECL, QRBuilder};
use serde_json::{Map, Value};
use time::{Date, OffsetDateTime, format_description::well_known::Iso8601};
use vault::Vault;
use webhooks::qr::OneTapLinks;

use super::texts::{Filling, Fillings, Texts};
use crate::pages::qr::QUIET_ZONE;

/// What has become of the eSIM, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EsimProgress {
    /// Nothing says whether it is installed.
    Ready,
    /// The provider says that it is not installed.
    New,
    Installed,
    Using,
    UsedUp,
    Ended(OffsetDateTime),
    Returned(OffsetDateTime),
}

impl EsimProgress {
    /// What is known of the eSIM of a page. `None` if there is nothing to show: it is not ready, or
    /// its fields were erased.
    pub(super) fn of(page: &InstallPage, now: OffsetDateTime) -> Option<Self> {
        if let Some(at) = page.returned_at {
            return Some(Self::Returned(at));
        }
        if page.state != PartnerUnitState::Ready || page.profile.is_none() {
            return None;
        }
        let Some((reading, ..)) = &page.reading else {
            return Some(Self::Ready);
        };
        let used = reading.data_used.unwrap_or_default();
        let is_used_up = reading.data_total.is_some_and(|all| all > 0 && used >= all);
        Some(match (reading.ends_at, reading.installed) {
            (Some(ends_at), _) if ends_at <= now => Self::Ended(ends_at),
            _ if is_used_up => Self::UsedUp,
            _ if used > 0 => Self::Using,
            (_, Some(true)) => Self::Installed,
            (_, Some(false)) => Self::New,
            (_, None) => Self::Ready,
        })
    }

    fn has_code(self) -> bool {
        matches!(self, Self::Ready | Self::New)
    }
}

/// What is told of the product. It stands in the free details of the option.
struct ProductFacts<'a> {
    apn: Option<&'a str>,
    /// Whether its days begin with its first connection, and not with its installation.
    starts_at_first_use: bool,
}

impl<'a> ProductFacts<'a> {
    fn of(details: &'a Map<String, Value>) -> Self {
        let text = |name: &str| details.get(name).and_then(Value::as_str);
        Self {
            apn: text("apn").filter(|apn| domain::shop::is_plain(apn)),
            starts_at_first_use: text("activation") == Some("first_use"),
        }
    }
}

/// The device of a request by its `User-Agent`, as the style sheet names it. Where it is not known,
/// the width of the window decides.
pub(super) fn device(user_agent: &str) -> &'static str {
    if user_agent.contains("iPhone") || user_agent.contains("iPad") {
        "iphone"
    } else if user_agent.contains("Android") {
        "android"
    } else {
        "any"
    }
}

/// A language that the traveller can choose.
struct OtherLanguage {
    tag: &'static str,
    name: String,
    direction: String,
}

/// A date for people and for programs.
struct ShownDate {
    machine: String,
    shown: String,
}

/// The activation code in each form in which it can be installed.
struct ShownCode {
    ios: String,
    android: String,
    smdp: String,
    matching_id: String,
    whole: String,
    /// The dark modules of the QR code as a path, and its side with the quiet zone.
    modules: String,
    side: usize,
}

impl ShownCode {
    fn new(code: &ActivationCode) -> anyhow::Result<Self> {
        let whole = code.download_link();
        let qr = QRBuilder::new(&*whole)
            .ecl(ECL::M)
            .build()
            .or_else(|_| QRBuilder::new(&*whole).ecl(ECL::L).build())
            .context("the text does not fit into a QR code")?;
        let mut modules = String::new();
        for row in 0..qr.size {
            let mut column = 0;
            while column < qr.size {
                let dark = (column..qr.size).take_while(|at| qr[row][*at].value());
                let dark = dark.count();
                if dark > 0 {
                    let (x, y) = (column + QUIET_ZONE, row + QUIET_ZONE);
                    write!(modules, "M{x} {y}h{dark}v1h-{dark}z")?;
                }
                column += dark.max(1);
            }
        }
        let OneTapLinks { ios, android } = OneTapLinks::new(code);
        Ok(Self {
            ios,
            android,
            smdp: code.smdp().to_owned(),
            matching_id: code.matching_id().to_owned(),
            side: qr.size + 2 * QUIET_ZONE,
            modules,
            whole,
        })
    }
}

/// How much data is used, in bytes.
struct Meter {
    all: u64,
    used: u64,
}

#[derive(Template)]
#[template(path = "install.html")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each one is a part of the page"
)]
struct View<'a> {
    texts: &'static Texts,
    fillings: Fillings,
    language: &'static str,
    languages: Vec<OtherLanguage>,
    device: &'static str,
    shop: &'a Shop,
    order: &'a str,
    heading: String,
    /// The key of the state, and the class of its mark.
    state: &'static str,
    mark: &'static str,
    has_dates: bool,
    by: Option<ShownDate>,
    has_days: bool,
    starts_at_first_use: bool,
    code: Option<ShownCode>,
    is_installed: bool,
    is_using: bool,
    /// The key of what is left, if the provider says it.
    left: Option<&'static str>,
    meter: Option<Meter>,
    /// The key of what has become of it.
    outcome: &'static str,
    is_over: bool,
    apn: Option<&'a str>,
}

impl View<'_> {
    /// A text as HTML.
    fn t(&self, key: &str) -> String {
        self.texts.html(key, &self.fillings)
    }

    /// A text without markup, which the template escapes.
    fn label(&self, key: &str) -> String {
        self.texts.plain(key, &self.fillings)
    }

    /// The keys of the steps by phone.
    #[expect(clippy::unused_self, reason = "the template calls it")]
    fn steps(&self) -> [(&'static str, &'static [&'static str]); 3] {
        [
            (
                "steps.iphone",
                &["iphone.1", "iphone.2", "iphone.3", "iphone.4"],
            ),
            (
                "steps.samsung",
                &["samsung.1", "samsung.2", "samsung.3", "samsung.4"],
            ),
            ("steps.pixel", &["pixel.1", "pixel.2", "pixel.3"]),
        ]
    }
}

/// The name of what was bought, from its place, its data and its days. If one of the first two is
/// not known, or there are several countries, it is the name that the catalogue has.
fn heading(page: &InstallPage, texts: &Texts, fillings: &mut Fillings) -> String {
    let place = match page.countries.as_deref() {
        Some([country]) => Some(texts.place(country)),
        _ => None,
    };
    let data_mb = page.data_mb.and_then(|mb| u64::try_from(mb).ok());
    let days = page.days.and_then(|days| u32::try_from(days).ok());
    let has_place = place.is_some();
    let name = place.unwrap_or_else(|| page.option_name.clone());
    fillings.insert("place", Filling::Name(name));
    if let Some(days) = days {
        fillings.insert("days", Filling::Name(texts.days(days)));
    }
    match (has_place, data_mb) {
        (true, Some(mb)) => {
            fillings.insert("data", Filling::Name(texts.data(mb << 20)));
            let key = days.map_or("what.short", |_| "what");
            texts.plain(key, fillings)
        }
        _ => page.option_name.clone(),
    }
}

/// Writes the page of an eSIM. `None` if there is nothing to show.
pub(super) fn written(
    page: &InstallPage,
    profile: Option<&Profile>,
    progress: EsimProgress,
    language: PageLanguage,
    device: &'static str,
) -> anyhow::Result<String> {
    let texts = Texts::of(language);
    let shop = &page.shop;
    let mut fillings = Fillings::from([
        ("shop", Filling::Name(shop.name.clone())),
        ("order", Filling::Code(page.external_order_id.clone())),
        ("code", Filling::Code("*#06#".into())),
    ]);
    let heading = heading(page, texts, &mut fillings);
    let facts = ProductFacts::of(&page.details);
    let mut meter = None;
    let mut left = None;
    let mut has_all = false;
    if let Some((reading, read_at, _)) = &page.reading {
        let as_of = reading.as_of.unwrap_or(*read_at);
        fillings.insert("time", Filling::Name(texts.moment(as_of)));
        let used = reading.data_used.unwrap_or_default();
        fillings.insert("used", Filling::Name(texts.data(used)));
        if let Some(all) = reading.data_total.filter(|all| *all > 0) {
            let used = used.min(all);
            has_all = true;
            fillings.insert("all", Filling::Name(texts.data(all)));
            fillings.insert("left", Filling::Name(texts.data(all - used)));
            meter = Some(Meter { all, used });
            left = Some("left.some");
            if let Some(end) = reading.ends_at {
                fillings.insert("end", Filling::Name(texts.moment(end)));
                left = Some("left");
            }
        }
    }
    if let EsimProgress::Ended(at) | EsimProgress::Returned(at) = progress {
        fillings.insert("date", Filling::Name(texts.date(at.date())));
    }
    let (state, mark) = match progress {
        EsimProgress::Ready => ("state.ready", ""),
        EsimProgress::New => ("state.new", ""),
        EsimProgress::Installed => ("state.installed", "good"),
        EsimProgress::Using if has_all => ("state.using", "good"),
        EsimProgress::Using => ("state.using.some", "good"),
        EsimProgress::UsedUp => ("state.used", "warn"),
        EsimProgress::Ended(_) | EsimProgress::Returned(_) => ("state.ended", "none"),
    };
    let outcome = match progress {
        EsimProgress::Ended(_) => "ended.what",
        EsimProgress::Returned(_) => "returned.what",
        EsimProgress::Ready
        | EsimProgress::New
        | EsimProgress::Installed
        | EsimProgress::Using
        | EsimProgress::UsedUp => "used.what",
    };
    let is_unused = progress.has_code() || progress == EsimProgress::Installed;
    let profile = profile.filter(|_| is_unused);
    let by = profile.and_then(|profile| {
        let date = Date::parse(&profile.expired_date, &Iso8601::DATE).ok()?;
        Some(ShownDate {
            machine: profile.expired_date.clone(),
            shown: texts.date(date),
        })
    });
    let code = profile.filter(|_| progress.has_code());
    let has_days = is_unused && fillings.contains_key("days");
    let starts_at_first_use = is_unused && facts.starts_at_first_use;
    let languages = shop.languages.iter().map(|language| {
        let texts = Texts::of(*language);
        OtherLanguage {
            tag: language.tag(),
            name: texts.plain("name", &Fillings::new()),
            direction: texts.direction().to_owned(),
        }
    });
    let view = View {
        language: language.tag(),
        languages: languages.collect(),
        device,
        shop,
        order: &page.external_order_id,
        heading,
        state,
        mark,
        has_dates: by.is_some() || has_days || starts_at_first_use,
        by,
        has_days,
        starts_at_first_use,
        code: code
            .map(|profile| ShownCode::new(&profile.code))
            .transpose()?,
        is_installed: progress == EsimProgress::Installed,
        is_using: progress == EsimProgress::Using,
        left,
        meter: meter.filter(|_| matches!(progress, EsimProgress::Using | EsimProgress::UsedUp)),
        outcome,
        is_over: matches!(progress, EsimProgress::Ended(_) | EsimProgress::Returned(_)),
        apn: facts.apn,
        texts,
        fillings,
    };
    Ok(view.render()?)
}

/// Opens the profile of a page as a look-up of its partner does, if the page shows something of it.
pub(super) fn profile(
    vault: &Vault,
    topup_id: &domain::TopupId,
    page: &InstallPage,
    progress: EsimProgress,
) -> anyhow::Result<Option<Profile>> {
    let is_shown = progress.has_code() || progress == EsimProgress::Installed;
    let sealed = page.profile.as_deref().filter(|_| is_shown);
    let open = |sealed| Profile::open(vault, page.partner_id, topup_id, sealed);
    Ok(sealed.map(open).transpose()?)
}

/// The page for an address that leads nowhere.
#[derive(Template)]
#[template(
    ext = "html",
    source = r#"<!doctype html>
<html lang="{{ language }}" dir="{{ direction }}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="robots" content="noindex, nofollow">
<title>{{ heading }}</title>
<link rel="stylesheet" href="page.css">
</head>
<body>
<main id="main"><section class="what"><h1>{{ heading }}</h1>{% if !text.is_empty() %}<p>{{ text }}</p>{% endif %}</section></main>
</body>
</html>
"#
)]
struct Notice {
    language: &'static str,
    direction: String,
    heading: String,
    text: String,
}

/// Writes a page that shows no eSIM: there is none, or too many ask at once.
pub(super) fn notice(language: PageLanguage, is_busy: bool) -> anyhow::Result<String> {
    let texts = Texts::of(language);
    let text = |key: &str| texts.plain(key, &Fillings::new());
    let (heading, text) = if is_busy {
        (text("busy"), String::new())
    } else {
        (text("gone"), text("gone.what"))
    };
    let notice = Notice {
        language: language.tag(),
        direction: texts.direction().to_owned(),
        heading,
        text,
    };
    Ok(notice.render()?)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use domain::{PartnerId, Reading, shop::Colour};
    use serde_json::json;
    use strum::VariantArray;
    use time::macros::datetime;

    use super::*;

    const NOW: OffsetDateTime = datetime!(2026-11-28 17:04 UTC);
    const CODE: &str = "LPA:1$rsp.orbis-profile.example$8D3A0D8E41C74B6F";
    const GB: u64 = 1 << 30;

    fn page() -> InstallPage {
        InstallPage {
            partner_id: PartnerId::new(),
            number: 1,
            shop: Shop {
                name: "Norvada Travel".into(),
                brand: Colour::parse("#14506b").unwrap(),
                brand_ink: Colour::parse("#ffffff").unwrap(),
                help_email: Some("help@norvada.example".into()),
                help_url: None,
                languages: PageLanguage::VARIANTS.to_vec(),
            },
            external_order_id: "NV-10431".into(),
            state: PartnerUnitState::Ready,
            profile: Some(Vec::new()),
            returned_at: None,
            option_name: "jp-3gb".into(),
            countries: Some(vec!["JP".into()]),
            data_mb: Some(3 * 1024),
            days: Some(10),
            details: Map::new(),
            reading: None,
        }
    }

    fn profile() -> Profile {
        Profile {
            code: ActivationCode::parse(CODE).unwrap(),
            expired_date: "2027-05-26".into(),
        }
    }

    fn read(page: &mut InstallPage, reading: Reading) {
        let read_at = datetime!(2026-11-28 14:05 UTC);
        page.reading = Some((reading, read_at, Duration::from_hours(3)));
    }

    fn shown(page: &InstallPage, language: PageLanguage) -> String {
        let progress = EsimProgress::of(page, NOW).unwrap();
        written(page, Some(&profile()), progress, language, "any").unwrap()
    }

    #[test]
    fn each_state_says_what_is_known_and_the_code_only_before_the_installation() {
        let used = |used: u64| Reading {
            data_used: Some(used),
            data_total: Some(3 * GB),
            ..Reading::default()
        };
        let installed = |installed| Reading {
            installed: Some(installed),
            ..Reading::default()
        };
        let past = Some(datetime!(2026-11-28 17:04 UTC));
        let ahead = Some(datetime!(2026-12-09 08:12 UTC));
        for (reading, says, has_code) in [
            (None, "Ready to install", true),
            (Some(Reading::default()), "Ready to install", true),
            (Some(used(0)), "Ready to install", true),
            (Some(installed(false)), "Not installed yet", true),
            (
                Some(installed(true)),
                "Installed, as of <bdi>28 November 2026, 14:05 UTC</bdi>",
                false,
            ),
            (
                Some(Reading {
                    ends_at: ahead,
                    ..used(GB + GB / 5)
                }),
                "<bdi>1.8 GB</bdi> left, until <bdi>9 December 2026, 08:12 UTC</bdi>",
                false,
            ),
            (
                Some(Reading {
                    data_used: Some(GB),
                    as_of: Some(datetime!(2026-11-28 13:00 UTC)),
                    ..Reading::default()
                }),
                "<bdi>1 GB</bdi> used, as of <bdi>28 November 2026, 13:00 UTC</bdi>",
                false,
            ),
            (Some(used(3 * GB)), "There is no data left.", false),
            (
                Some(Reading {
                    ends_at: past,
                    ..used(GB)
                }),
                "Ended on <bdi>28 November 2026</bdi>",
                false,
            ),
        ] {
            let mut page = page();
            if let Some(reading) = reading {
                read(&mut page, reading);
            }
            for language in PageLanguage::VARIANTS {
                let html = shown(&page, *language);
                for part in ["8D3A0D8E41C74B6F", "rsp.orbis-profile.example"] {
                    assert_eq!(html.contains(part), has_code, "{says}: {html}");
                }
                assert!(!html.contains("<bdi></bdi>"), "{language:?} {says}: {html}");
            }
            let english = shown(&page, PageLanguage::En);
            assert!(english.contains(says), "{says}: {english}");
        }
        let mut returned = page();
        returned.returned_at = Some(datetime!(2026-12-02 10:00 UTC));
        returned.state = PartnerUnitState::Returned;
        returned.profile = None;
        let html = shown(&returned, PageLanguage::En);
        assert!(html.contains("took this eSIM back on <bdi>2 December 2026</bdi>"));
        assert!(!html.contains("8D3A0D8E41C74B6F"));
        let mut erased = page();
        erased.profile = None;
        assert_eq!(EsimProgress::of(&erased, NOW), None);
        let mut processing = page();
        processing.state = PartnerUnitState::Processing;
        assert_eq!(EsimProgress::of(&processing, NOW), None);
    }

    #[test]
    fn the_page_names_what_was_bought_in_the_language() {
        for (language, heading) in [
            (PageLanguage::En, "Japan 3 GB, 10 days"),
            (PageLanguage::Ja, "日本 3 GB・10日間"),
            (PageLanguage::Ar, "اليابان 3 غيغابايت، 10 أيام"),
            (PageLanguage::Fr, "Japon 3 Go, 10 jours"),
            (PageLanguage::ZhHans, "日本 3 GB，10 天"),
        ] {
            let html = shown(&page(), language);
            assert!(
                html.contains(&format!("<h1><bdi>{heading}</bdi></h1>")),
                "{html}"
            );
            assert!(html.contains(&format!("lang=\"{}\"", language.tag())));
        }
        let mut several = page();
        several.countries = Some(vec!["JP".into(), "KR".into()]);
        several.details = json!({ "apn": "globaldata", "activation": "first_use" })
            .as_object()
            .cloned()
            .unwrap();
        let html = shown(&several, PageLanguage::En);
        for part in [
            "<h1><bdi>jp-3gb</bdi></h1>",
            "globaldata",
            "When it first connects in <bdi>jp-3gb</bdi>",
            "<time datetime=\"2027-05-26\">26 May 2027</time>",
        ] {
            assert!(html.contains(part), "{part}: {html}");
        }
        assert!(!shown(&page(), PageLanguage::En).contains("When it first connects"));
    }

    #[test]
    fn hostile_names_stay_text() {
        let hostile = "</title><script>alert('x')</script>\"><img src=x onerror=y>{shop}";
        let mut page = page();
        page.shop.name = hostile.into();
        page.shop.help_url = Some(format!("https://a.example/\"{hostile}"));
        page.external_order_id = hostile.into();
        page.option_name = hostile.into();
        page.countries = None;
        page.details = json!({ "apn": hostile }).as_object().cloned().unwrap();
        for language in PageLanguage::VARIANTS {
            let html = shown(&page, *language);
            assert_eq!(html.matches("<script").count(), 1, "{html}");
            assert!(!html.contains("<img") && !html.contains("style="), "{html}");
            assert_eq!(html.matches("src=\"").count(), 1, "{html}");
        }
    }

    #[test]
    fn the_page_loads_only_its_own_files_and_has_no_style_of_its_own() {
        let html = shown(&page(), PageLanguage::En);
        let links = html
            .split("href=\"")
            .skip(1)
            .filter_map(|part| part.split('"').next());
        for link in links {
            let ours = ["#main", "page.css", "colours/14506b-ffffff"].contains(&link);
            let is_tap = link.starts_with("https://esimsetup.apple.com/esim_qrcode_provisioning?")
                || link.starts_with("https://esimsetup.android.com/esim_qrcode_provisioning?");
            let leads = link.starts_with("?lang=")
                || link == "mailto:help@norvada.example?subject=NV-10431";
            assert!(ours || is_tap || leads, "{link}");
        }
        assert_eq!(html.matches("<script src=\"page.js\" defer>").count(), 1);
        assert!(
            !html.contains(" style=") && !html.contains("<style"),
            "{html}"
        );
        // The code is in one-tap links, in the values to type, and nowhere else.
        assert_eq!(html.matches("8D3A0D8E41C74B6F").count(), 4, "{html}");
        assert_eq!(html.matches("<svg").count(), 2);
    }

    #[test]
    fn the_device_is_read_from_the_request() {
        for (agent, device) in [
            (
                "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X)",
                "iphone",
            ),
            ("Mozilla/5.0 (Linux; Android 15; Pixel 9)", "android"),
            ("Mozilla/5.0 (X11; Linux x86_64)", "any"),
            ("", "any"),
        ] {
            assert_eq!(super::device(agent), device);
        }
    }

    #[test]
    fn the_picture_is_that_of_the_code() {
        let shown = ShownCode::new(&profile().code).unwrap();
        let qr = QRBuilder::new(CODE).ecl(ECL::M).build().unwrap();
        let dark = (0..qr.size).flat_map(|row| (0..qr.size).map(move |column| (row, column)));
        let dark = dark
            .filter(|(row, column)| qr[*row][*column].value())
            .count();
        let runs = shown.modules.split('h').skip(1);
        let drawn: usize = runs
            .filter_map(|run| run.split('v').next()?.parse::<usize>().ok())
            .sum();
        assert_eq!(drawn, dark);
        assert_eq!(shown.side, qr.size + 8);
    }
}
