//! Copies of archives in a bucket of S3, Google Cloud Storage or Azure.
//!
//! A run always writes to a folder first: it may delete an order from the database only when the rows
//! are on a disk, and an object of a bucket cannot be appended to. A complete archive is then copied,
//! with its manifest last, so that a bucket holds the manifest of no archive that is not whole there.
//! `show`, `restore` and `list --verify` fetch the files into a temporary folder and read them there.
//!
//! Buckets are asked through a client of our own, without a proxy and without redirects.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, anyhow, bail, ensure};
use async_trait::async_trait;
use http_body_util::BodyExt;
use object_store::{
    ClientOptions, ObjectStore, ObjectStoreExt, ObjectStoreScheme,
    aws::AmazonS3Builder,
    azure::MicrosoftAzureBuilder,
    buffered::BufWriter,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
        HttpResponseBody, HttpService,
    },
    gcp::GoogleCloudStorageBuilder,
    local::LocalFileSystem,
    path::Path as Key,
};
use rustix::fs::Mode;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tools::archive::TABLES;
use url::Url;

use super::{
    folder::{self, MANIFEST},
    manifest::{Manifest, file_name},
};

/// The longest exchange with a bucket. One request carries at most a part of 10 MB.
const TIMEOUT: Duration = Duration::from_mins(5);

/// Where archives are: a folder, or a bucket, which is written as a URL.
#[derive(Clone, Debug)]
pub enum Place {
    Folder(PathBuf),
    Bucket(Url),
}

impl Place {
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.contains("://") {
            url(text).map(Self::Bucket)
        } else {
            Ok(Self::Folder(text.into()))
        }
    }

    /// The files, from a bucket as copies. `only` are the archives that are needed; `None` for all.
    pub async fn files(&self, only: Option<&[i32]>) -> anyhow::Result<Files> {
        match self {
            Self::Folder(folder) => Ok(Files {
                folder: folder.clone(),
                copies: None,
            }),
            Self::Bucket(url) => {
                let copies = tempfile::tempdir().context("cannot make a temporary folder")?;
                Bucket::open(url)?.fetch(copies.path(), only).await?;
                Ok(Files {
                    folder: copies.path().to_owned(),
                    copies: Some((copies, url.clone())),
                })
            }
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(folder) => folder.display().fmt(f),
            Self::Bucket(url) => url.fmt(f),
        }
    }
}

/// A folder with the files of archives. If they are copies from a bucket, it is removed at the end.
pub struct Files {
    pub folder: PathBuf,
    copies: Option<(TempDir, Url)>,
}

impl Files {
    /// A text about the files, with the names that the operator knows: the temporary folder of copies
    /// is gone before anybody could look into it, so the bucket stands in its place.
    pub fn named(&self, text: &str) -> String {
        let Some((copies, url)) = &self.copies else {
            return text.to_owned();
        };
        let copies = copies.path().display().to_string();
        let bucket = url.as_str().trim_end_matches('/');
        // The URL may itself name one archive.
        let one = bucket.rsplit('/').next().unwrap_or_default();
        text.replace(&format!("{copies}/{one}"), bucket)
            .replace(&copies, bucket)
    }

    /// An error about the files, in the same way.
    pub fn error(&self, error: anyhow::Error) -> anyhow::Error {
        let text = format!("{error:#}");
        let named = self.named(&text);
        if named == text { error } else { anyhow!(named) }
    }
}

/// Parses the URL of a bucket. Keys are refused in it, because a command line is no place for them.
pub fn url(text: &str) -> Result<Url, String> {
    let url: Url = text
        .parse()
        .map_err(|error| format!("{error}; write it like `s3://bucket/archives`"))?;
    let keys = !url.username().is_empty() || url.password().is_some();
    if keys || url.query().is_some() || url.fragment().is_some() {
        return Err("it has a user, a query or a fragment; keys come from the environment".into());
    }
    match ObjectStoreScheme::parse(&url) {
        Ok((
            ObjectStoreScheme::Local
            | ObjectStoreScheme::AmazonS3
            | ObjectStoreScheme::GoogleCloudStorage
            | ObjectStoreScheme::MicrosoftAzure,
            _,
        )) => Ok(url),
        _ => Err("it is no bucket that this program knows; write it like `s3://bucket/archives`, `gs://bucket/archives`, \
                  `az://container/archives` or `file:///srv/copies`"
            .into()),
    }
}

/// A bucket, and the prefix in it under which the archives are.
pub struct Bucket {
    url: Url,
    store: Arc<dyn ObjectStore>,
    prefix: Key,
}

impl Bucket {
    /// Prepares requests to a bucket, and sends none.
    pub fn open(url: &Url) -> anyhow::Result<Self> {
        let (scheme, prefix) = ObjectStoreScheme::parse(url)?;
        let text = url.as_str();
        let store: object_store::Result<Arc<dyn ObjectStore>> = match scheme {
            ObjectStoreScheme::AmazonS3 => AmazonS3Builder::from_env()
                .with_url(text)
                .with_http_connector(Connector)
                .build()
                .map(|store| Arc::new(store) as _),
            ObjectStoreScheme::GoogleCloudStorage => GoogleCloudStorageBuilder::from_env()
                .with_url(text)
                .with_http_connector(Connector)
                .build()
                .map(|store| Arc::new(store) as _),
            ObjectStoreScheme::MicrosoftAzure => MicrosoftAzureBuilder::from_env()
                .with_url(text)
                .with_http_connector(Connector)
                .build()
                .map(|store| Arc::new(store) as _),
            _ => {
                // Archives may hold profiles, so only their owner reads them, as those of `--to`. The
                // library has no setting for it.
                rustix::process::umask(Mode::RWXG | Mode::RWXO);
                Ok(Arc::new(LocalFileSystem::new()))
            }
        };
        Ok(Self {
            url: url.clone(),
            store: store.map_err(|error| told(url, &error))?,
            prefix,
        })
    }

    /// Fails if the bucket cannot be listed, so that a wrong key is known before anything is done.
    pub async fn reach(&self) -> anyhow::Result<()> {
        let listed = self.store.list_with_delimiter(Some(&self.prefix)).await;
        listed
            .map(drop)
            .map_err(|error| self.failed(&error))
            .context("nothing was changed")
    }

    /// Copies a complete archive, unless it is there. Returns whether it was copied.
    pub async fn push(&self, folder: &Path) -> anyhow::Result<bool> {
        let (manifest, _) = folder::manifest(folder)?;
        let shown = folder.display();
        let at = self.prefix.clone().join(name_of(manifest.archive));
        let written = tokio::fs::read(folder.join(MANIFEST)).await?;
        match self.read(&at.clone().join(MANIFEST)).await? {
            Some(there) if there == written => return Ok(false),
            Some(_) => bail!(
                "{} holds another archive {}, so {shown} was not copied; choose another prefix",
                self.url,
                manifest.archive
            ),
            None => {}
        }
        let faults = folder::faults(folder, &manifest);
        ensure!(
            faults.is_empty(),
            "{shown} is not what was written, so it was not copied: {}",
            faults.join("; ")
        );
        for file in &manifest.files {
            // The name is ours and not the manifest's, as everywhere.
            let name = file_name(&file.table);
            let to = at.clone().join(name.as_str());
            self.upload(&folder.join(&name), &to).await?;
            let there = self.store.head(&to).await;
            let there = there.map_err(|error| self.failed(&error))?;
            ensure!(
                there.size == file.bytes,
                "{}/{to} has {} bytes after its upload instead of {}",
                self.url,
                there.size,
                file.bytes
            );
        }
        let to = at.join(MANIFEST);
        let put = self.store.put(&to, written.into()).await;
        put.map_err(|error| self.failed(&error))?;
        Ok(true)
    }

    /// Copies the archives of the bucket into a folder. A file that is missing stays missing, which
    /// the check by the manifest says.
    async fn fetch(&self, into: &Path, only: Option<&[i32]>) -> anyhow::Result<()> {
        let listed = self.store.list_with_delimiter(Some(&self.prefix)).await;
        let mut found = listed.map_err(|error| self.failed(&error))?.common_prefixes;
        // The URL may also name one archive.
        found.push(self.prefix.clone());
        for at in found {
            let Some(text) = self.read(&at.clone().join(MANIFEST)).await? else {
                continue;
            };
            let manifest: Manifest = serde_json::from_slice(&text)
                .with_context(|| format!("{}: {at}/{MANIFEST} is not a manifest", self.url))?;
            if only.is_some_and(|only| !only.contains(&manifest.archive)) {
                continue;
            }
            let folder = into.join(name_of(manifest.archive));
            tokio::fs::create_dir(&folder).await?;
            for table in TABLES {
                let name = file_name(table.name);
                self.download(&at.clone().join(name.as_str()), &folder.join(&name))
                    .await?;
            }
            tokio::fs::write(folder.join(MANIFEST), text).await?;
        }
        Ok(())
    }

    async fn upload(&self, from: &Path, to: &Key) -> anyhow::Result<()> {
        let mut file = tokio::fs::File::open(from).await?;
        let mut writer = BufWriter::new(Arc::clone(&self.store), to.clone());
        let copied = async {
            tokio::io::copy(&mut file, &mut writer).await?;
            writer.shutdown().await
        };
        copied.await.map_err(|error| self.failed(&error))
    }

    async fn download(&self, from: &Key, to: &Path) -> anyhow::Result<()> {
        let got = match self.store.get(from).await {
            Err(object_store::Error::NotFound { .. }) => return Ok(()),
            other => other.map_err(|error| self.failed(&error))?,
        };
        let mut file = tokio::fs::File::create(to).await?;
        let mut stream = got.into_stream();
        while let Some(bytes) = futures_util::StreamExt::next(&mut stream).await {
            let bytes = bytes.map_err(|error| self.failed(&error))?;
            file.write_all(&bytes).await?;
        }
        file.flush().await?;
        Ok(())
    }

    /// A small object; `None` if there is none.
    async fn read(&self, key: &Key) -> anyhow::Result<Option<Vec<u8>>> {
        let read = match self.store.get(key).await {
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Ok(got) => got.bytes().await,
            Err(error) => Err(error),
        };
        read.map(|bytes| Some(bytes.into()))
            .map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &dyn std::error::Error) -> anyhow::Error {
        told(&self.url, error)
    }
}

/// The name of an archive's folder, and of its prefix in a bucket.
pub fn name_of(archive: i32) -> String {
    format!("archive-{archive}")
}

/// The error of a bucket. The queries of URLs are left out, because that of Azure may hold a key.
fn told(url: &Url, error: &dyn std::error::Error) -> anyhow::Error {
    let text = error.to_string();
    let words = text
        .split_whitespace()
        .map(|word| match word.split_once('?') {
            Some((before, query)) if query.contains('=') => format!("{before}?…"),
            _ => word.to_owned(),
        });
    let text = words.collect::<Vec<_>>().join(" ");
    anyhow!("{url} cannot be used: {text}")
}

/// Makes the requests of a store by our client.
#[derive(Debug)]
struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = runtime::client::direct(TIMEOUT).build();
        let client = client.map_err(|error| object_store::Error::Generic {
            store: "HTTP client",
            source: Box::new(error.without_url()),
        })?;
        Ok(HttpClient::new(Client(client)))
    }
}

#[derive(Debug)]
struct Client(reqwest::Client);

#[async_trait]
impl HttpService for Client {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let request = request.map(reqwest::Body::wrap);
        let request = reqwest::Request::try_from(request).map_err(fault)?;
        let response = self.0.execute(request).await.map_err(fault)?;
        let response: http::Response<reqwest::Body> = response.into();
        Ok(response.map(|body| HttpResponseBody::new(body.map_err(fault))))
    }
}

/// The kind decides whether the store repeats the request.
fn fault(error: reqwest::Error) -> HttpError {
    let kind = if error.is_timeout() {
        HttpErrorKind::Timeout
    } else if error.is_connect() {
        HttpErrorKind::Connect
    } else if error.is_decode() {
        HttpErrorKind::Decode
    } else if error.is_request() || error.is_body() {
        HttpErrorKind::Request
    } else {
        HttpErrorKind::Unknown
    };
    HttpError::new(kind, error.without_url())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_folder_or_a_bucket_without_keys() {
        assert!(matches!(
            Place::parse("/srv/archives"),
            Ok(Place::Folder(_))
        ));
        for bucket in [
            "s3://b/a",
            "gs://b",
            "az://container/a/b",
            "file:///srv/copies",
        ] {
            let place = Place::parse(bucket).unwrap();
            assert!(matches!(place, Place::Bucket(_)), "{bucket}");
            assert_eq!(place.to_string(), bucket);
        }
        for wrong in [
            "ftp://b/a",
            "https://example.com/a",
            "memory:///",
            "s3://key:secret@b/a",
            "az://c/a?sig=1",
            "s3://b/a#1",
        ] {
            let error = Place::parse(wrong).unwrap_err();
            assert!(!error.contains("secret"), "{wrong}: {error}");
        }
    }

    #[test]
    fn an_error_shows_no_query() {
        let url = url("az://c/a").unwrap();
        let error = std::io::Error::other("GET https://x/c?restype=c&sig=hush failed: what now?");
        let text = told(&url, &error).to_string();
        assert_eq!(
            text,
            "az://c/a cannot be used: GET https://x/c?… failed: what now?"
        );
    }
}
