//! Reads a mirror, from a web server or from disk.

use std::path::Path;

use tokio::{fs::File, io::AsyncReadExt as _};

use crate::{
    Error, Mirror, Result, Version,
    releases::{
        http::{Answer, Ask, Client, Progress, Rules},
        lists,
        mirror::{Asset, ListKind, Location},
    },
};

/// The most pages of GitHub's API that are read, of [`lists::PAGE`] releases each.
const MOST_PAGES: usize = 50;

/// A list of versions from a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum List {
    New {
        /// Newest first.
        versions: Vec<Version>,
        /// The ETag, for the next conditional request.
        etag: Option<String>,
    },
    /// The list still has the ETag that was sent.
    NotModified,
}

/// A mirror with its client.
#[derive(Clone, Debug)]
pub struct Source {
    mirror: Mirror,
    /// `None` when the mirror is on disk.
    client: Option<Client>,
}

impl Source {
    /// Makes a source, without a request.
    ///
    /// # Errors
    /// Configuration: the mirror's certificate authority is no PEM.
    pub fn new(mirror: Mirror, rules: Rules) -> Result<Self> {
        let needed = !mirror.is_on_disk();
        let client = needed
            .then(|| Client::new(rules, mirror.authority.as_deref()))
            .transpose()?;
        Ok(Self { mirror, client })
    }

    pub fn mirror(&self) -> &Mirror {
        &self.mirror
    }

    fn client(&self) -> Result<&Client> {
        self.client.as_ref().ok_or_else(|| {
            Error::configuration(format!(
                "{} is on disk, and names a server",
                self.mirror.base
            ))
        })
    }

    /// Requests the list of versions, conditionally with an ETag. For a list in pages the ETag is that of the first one, where
    /// new releases appear.
    ///
    /// # Errors
    /// Those of [`Client::get`] and [`lists::read`]; storage for a directory that cannot be read.
    pub async fn list(&self, etag: Option<&str>) -> Result<List> {
        let (mirror, from) = (&self.mirror, self.mirror.list.to_string());
        let what = format!("the list of versions of {}", mirror.tool);
        let Location::Url(url) = &mirror.list else {
            let bytes = match &mirror.list {
                Location::File(path) if mirror.list_kind == ListKind::Directory => {
                    names(path).await?
                }
                other => self.small(other, &what, lists::LARGEST).await?,
            };
            return Ok(List::New {
                versions: lists::read(mirror.list_kind, &from, &bytes)?,
                etag: None,
            });
        };
        if mirror.list_kind != ListKind::GitHub {
            return Ok(match self.page(url, &what, etag).await? {
                Answer::Body { bytes, etag } => List::New {
                    versions: lists::read(mirror.list_kind, &from, &bytes)?,
                    etag,
                },
                Answer::NotModified => List::NotModified,
            });
        }
        let (mut versions, mut tag) = (Vec::new(), None);
        for number in 1..=MOST_PAGES {
            let url = format!("{url}?per_page={}&page={number}", lists::PAGE);
            let Answer::Body { bytes, etag: own } =
                self.page(&url, &what, etag.filter(|_| number == 1)).await?
            else {
                return Ok(List::NotModified);
            };
            tag = if number == 1 { own } else { tag };
            let page = lists::page(&from, &bytes)?;
            versions.extend(page.versions);
            if page.entries < lists::PAGE {
                break;
            }
        }
        Ok(List::New {
            versions: lists::sorted(&from, versions)?,
            etag: tag,
        })
    }

    async fn page(&self, url: &str, what: &str, etag: Option<&str>) -> Result<Answer> {
        let auth = self.mirror.auth_for(&Location::Url(url.to_owned()));
        let html = self.mirror.list_kind == ListKind::Html;
        self.client()?
            .get(
                Ask {
                    url,
                    what,
                    auth,
                    cap: lists::LARGEST,
                    html,
                },
                etag,
            )
            .await
    }

    /// Reads a small file, such as sums and signatures, of at most `cap` bytes. `what` names it in messages.
    ///
    /// # Errors
    /// Those of [`Client::get`]; configuration for a file that is missing on disk, storage for one that cannot be read.
    pub async fn small(&self, location: &Location, what: &str, cap: u64) -> Result<Vec<u8>> {
        match location {
            Location::Url(url) => {
                let ask = Ask {
                    url,
                    what,
                    auth: self.mirror.auth_for(location),
                    cap,
                    html: false,
                };
                match self.client()?.get(ask, None).await? {
                    Answer::Body { bytes, .. } => Ok(bytes),
                    Answer::NotModified => Err(Error::integrity(format!(
                        "{location} answered as if it had been asked before"
                    ))),
                }
            }
            Location::File(path) => {
                let mut bytes = Vec::new();
                let file = open(path, what, cap).await?;
                file.take(cap + 1)
                    .read_to_end(&mut bytes)
                    .await
                    .map_err(|error| Error::storage(path.display(), &error))?;
                if bytes.len() as u64 > cap {
                    Err(too_large(path, what, cap))
                } else {
                    Ok(bytes)
                }
            }
        }
    }

    /// Writes an archive to a file and returns its length in bytes. Does not verify or sync.
    ///
    /// # Errors
    /// Those of [`Client::download`]; configuration for a file that is missing on disk, storage for one that cannot be read.
    pub async fn download(
        &self,
        asset: &Asset,
        what: &str,
        to: &mut File,
        cap: u64,
        progress: Progress<'_>,
    ) -> Result<u64> {
        match &asset.location {
            Location::Url(url) => {
                let ask = Ask {
                    url,
                    what,
                    auth: self.mirror.auth_for(&asset.location),
                    cap,
                    html: false,
                };
                self.client()?.download(ask, to, progress).await
            }
            Location::File(path) => {
                let from = open(path, what, cap).await?;
                to.set_len(0)
                    .await
                    .map_err(|error| Error::storage(format!("the file for {what}"), &error))?;
                let copied = tokio::io::copy(&mut from.take(cap + 1), to).await;
                let copied = copied.map_err(|error| {
                    Error::storage(format!("{} to the file for {what}", path.display()), &error)
                })?;
                if copied > cap {
                    return Err(too_large(path, what, cap));
                }
                progress(copied, Some(copied));
                Ok(copied)
            }
        }
    }
}

/// Opens a file of a mirror on disk.
async fn open(path: &Path, what: &str, cap: u64) -> Result<File> {
    let missing = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => {
            Error::absent(what, path.display())
        }
        _ => Error::storage(path.display(), &error),
    };
    // Checked before it is opened: a pipe blocks without a writer.
    let meta = tokio::fs::metadata(path).await.map_err(missing)?;
    if !meta.is_file() {
        return Err(Error::configuration(format!(
            "{}, where {what} should be, is no file",
            path.display()
        )));
    }
    if meta.len() > cap {
        return Err(too_large(path, what, cap));
    }
    File::open(path).await.map_err(missing)
}

fn too_large(path: &Path, what: &str, cap: u64) -> Error {
    Error::integrity(format!(
        "{} has more than {cap} bytes; it cannot be {what}",
        path.display()
    ))
}

/// The names in a directory, one per line.
async fn names(path: &Path) -> Result<Vec<u8>> {
    let storage = |error| Error::storage(path.display(), &error);
    let mut entries = match tokio::fs::read_dir(path).await {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::configuration(format!(
                "there is no directory {} with versions in it",
                path.display()
            )));
        }
        Err(error) => return Err(storage(error)),
    };
    let mut names = Vec::new();
    while let Some(entry) = entries.next_entry().await.map_err(storage)? {
        names.extend_from_slice(entry.file_name().as_encoded_bytes());
        names.push(b'\n');
        if names.len() as u64 > lists::LARGEST {
            return Err(Error::configuration(format!(
                "{} has too many entries to be a mirror",
                path.display()
            )));
        }
    }
    Ok(names)
}
