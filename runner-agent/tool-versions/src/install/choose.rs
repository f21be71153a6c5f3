//! The choice of a version: from the list of the mirror, or from local versions when there is no list.

use std::{fmt::Write as _, time::SystemTime};

use super::Installer;
use crate::{Decision, Error, Kind, Result, Version, releases::list_cache};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    pub version: Version,
    /// The choice was among local versions; newer ones may be published.
    pub local: bool,
    /// A caveat for the user: the list is stale, or there was none.
    pub remark: Option<String>,
}

impl Installer {
    /// Chooses a version. `local` are the versions outside of this cache, such as those of the image.
    ///
    /// An exact version is returned as it is, without a request. Otherwise the list decides, so that two pods with different caches choose
    /// the same version. Local versions are used when there is no list, and for versions that are not in the list.
    ///
    /// # Errors
    /// Configuration when there is no such version; those of [`list_cache::known`] when no local version fits either.
    pub async fn choose(&self, decision: &Decision, local: &[Version]) -> Result<Chosen> {
        if let Some(version) = decision.request.exact() {
            return Ok(Chosen {
                version: version.clone(),
                local: false,
                remark: None,
            });
        }
        let mut local: Vec<Version> = local.to_vec();
        local.extend(
            self.store
                .list()?
                .into_iter()
                .filter(|one| one.tool == decision.tool)
                .map(|one| one.version),
        );
        let newest_local = || decision.choose(&local).cloned();
        let Some(channel) = self.channel(decision.tool) else {
            let version =
                newest_local().ok_or_else(|| decision.unmet(&local, "versions at hand"))?;
            return Ok(Chosen {
                version,
                local: true,
                remark: None,
            });
        };
        if !self.may_read(channel) {
            let where_ = "versions at hand (offline)";
            let version = newest_local().ok_or_else(|| decision.unmet(&local, where_))?;
            return Ok(Chosen {
                version,
                local: true,
                remark: None,
            });
        }
        let known =
            match list_cache::known(&channel.source()?, &self.lists, SystemTime::now()).await {
                Ok(known) => known,
                // The mirror cannot be reached. Local versions must not hide a wrong setting of the mirror.
                Err(error) if matches!(error.kind, Kind::Unavailable | Kind::Integrity) => {
                    let Some(version) = newest_local() else {
                        return Err(Error {
                            text: format!(
                                "{}; {}",
                                decision.unmet(&local, "versions at hand").text,
                                error.text
                            ),
                            ..error
                        });
                    };
                    let remark = Some(format!(
                        "the newest at hand, since no list can be had: {}",
                        error.text
                    ));
                    return Ok(Chosen {
                        version,
                        local: true,
                        remark,
                    });
                }
                Err(error) => return Err(error),
            };
        let remark = known.stale.map(|why| {
            let mut text = "by a list that is ".to_owned();
            let minutes = known.age.as_secs() / 60;
            let _ = if minutes < 120 {
                write!(text, "{minutes} min old")
            } else {
                write!(text, "{} h old", minutes / 60)
            };
            let _ = write!(text, ": {why}");
            text
        });
        if let Some(version) = decision.choose(&known.versions).cloned() {
            return Ok(Chosen {
                version,
                local: false,
                remark,
            });
        }
        match newest_local() {
            Some(version) => Ok(Chosen {
                version,
                local: true,
                remark,
            }),
            None => Err(decision.unmet(
                &known.versions,
                &format!("the newest at {}", channel.mirror.list),
            )),
        }
    }
}
