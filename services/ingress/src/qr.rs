//! The QR picture that `qrcode_img_url` names. The path is a bearer credential: it is never logged
//! and nobody may keep the picture.

use anyhow::Context;
use axum::{
    extract::{Path, rejection::PathRejection},
    http::header,
    response::{IntoResponse, Response},
};
use domain::ActivationCode;
use qrcode::{Color, EcLevel, QrCode};

use crate::error::ApiError;

/// Smallest and largest picture, in pixels of one side.
const SIZES: std::ops::RangeInclusive<usize> = 64..=1024;
/// The blank border that the standard asks for, in modules.
const QUIET_ZONE: usize = 4;

/// `GET /qr/<percent-encoded LPA text>/<size>`: a square PNG of `size` pixels. Other texts than
/// activation codes and other sizes than 64 to 1024 don't exist.
pub async fn draw(path: Result<Path<(String, String)>, PathRejection>) -> Result<Response, ApiError> {
    let Path((text, size)) = path.map_err(|_| ApiError::NotFound)?;
    let code = ActivationCode::parse(&text).map_err(|_| ApiError::NotFound)?;
    let size: usize = size.parse().map_err(|_| ApiError::NotFound)?;
    if !SIZES.contains(&size) {
        return Err(ApiError::NotFound);
    }
    let png = picture(&code.download_link(), size)
        .map_err(ApiError::Internal)?
        .ok_or(ApiError::NotFound)?;
    let headers = [
        (header::CONTENT_TYPE, "image/png"),
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    Ok((headers, png).into_response())
}

/// Draws black modules on white, as large as whole pixels allow, centred; `None` if not even one pixel
/// is left for each.
fn picture(text: &str, size: usize) -> anyhow::Result<Option<Vec<u8>>> {
    const BLACK: u8 = 0;
    const WHITE: u8 = 255;
    let code = QrCode::with_error_correction_level(text, EcLevel::M)
        .or_else(|_| QrCode::with_error_correction_level(text, EcLevel::L))
        .context("the text does not fit into a QR code")?;
    let modules = code.width();
    let colors = code.to_colors();
    let scale = size / (modules + 2 * QUIET_ZONE);
    if scale == 0 {
        return Ok(None);
    }
    let offset = size.saturating_sub(modules * scale) / 2;
    let mut pixels = vec![WHITE; size * size];
    for y in 0..size {
        for x in 0..size {
            let module = |at: usize| {
                at.checked_sub(offset)
                    .map(|at| at / scale)
                    .filter(|at| *at < modules)
            };
            if let (Some(column), Some(row)) = (module(x), module(y))
                && colors[row * modules + column] == Color::Dark
            {
                pixels[y * size + x] = BLACK;
            }
        }
    }
    let mut png = Vec::new();
    let side = u32::try_from(size)?;
    let mut encoder = png::Encoder::new(&mut png, side, side);
    encoder.set_color(png::ColorType::Grayscale);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.write_header()?.write_image_data(&pixels)?;
    Ok(Some(png))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_activation_codes_of_sane_size_are_drawn() {
        let draw = |text: &str, size: &str| draw(Ok(Path((text.to_owned(), size.to_owned()))));
        let good = draw("LPA:1$smdp.example$AB12", "300").await.unwrap();
        assert_eq!(good.headers()["content-type"], "image/png");
        assert_eq!(good.headers()["cache-control"], "no-store");
        for (text, size) in [
            ("https://example.com", "300"),
            ("LPA:1$smdp.example$AB12", "63"),
            ("LPA:1$smdp.example$AB12", "1025"),
            ("LPA:1$smdp.example$AB12", "-1"),
            ("LPA:1$smdp.example$AB12", "300px"),
        ] {
            assert!(
                matches!(draw(text, size).await, Err(ApiError::NotFound)),
                "{text} {size}"
            );
        }
    }

    #[test]
    fn the_longest_activation_code_is_drawn_whole_or_not_at_all() {
        let longest = ActivationCode::new(&"a".repeat(253), &"A".repeat(255)).unwrap();
        assert!(picture(&longest.download_link(), 1024).unwrap().is_some());
        assert!(picture(&longest.download_link(), 64).unwrap().is_none());
    }
}
