//! Quotas as hidden attributes: what accounts use, their limits, and the project of a directory.
//!
//! Read, on any inode: `quota.KIND.ID` (JSON; `KIND` is `user`, `group` or `project`), `quota` or `quota.after.KIND.ID`
//! (JSON, all accounts, as many as fit), `project` (of the inode, 0: none). Write: `quota` = `KIND ID` and any of
//! `bytes=`, `soft_bytes=`, `inodes=`, `soft_inodes=`, `grace_s=` (0: no limit; what is left out stays), `project` = a
//! number or `new`. The servers check the permission.

use super::control;
use crate::api::Ctx;
use crate::conn::replies::unexpected;
use crate::mount::Mount;
use amphi_types::limits::BLOCK;
use amphi_types::{Account, AccountKind, AccountView, Errno, Ino, Limits, Result, SetAttr, TargetId};
use amphi_wire::{Reply, Request};
use std::fmt::Write;
use std::sync::Arc;

/// The target that has the limits.
const LEDGER: TargetId = TargetId(0);
/// Most bytes of an answer, which has to fit into an attribute.
const TEXT_MAX: usize = 60_000;
const QUOTA: &str = "quota";
const PROJECT: &str = "project";

/// Returns whether an attribute of this name belongs to this module.
pub(super) fn is_own(name: &[u8]) -> bool {
    name == PROJECT.as_bytes() || name == QUOTA.as_bytes() || name.starts_with(b"quota.")
}

fn account_of(kind: &str, id: &str) -> Option<Account> {
    Some(Account { kind: AccountKind::of_name(kind)?, id: id.parse().ok()? })
}

fn json(view: &AccountView) -> String {
    let AccountView { account, used, limits, over_since_s, silent } = view;
    let Limits { hard, soft, grace_s } = limits;
    format!(
        "{{\"kind\":\"{}\",\"id\":{},\"used_bytes\":{},\"used_inodes\":{},\"bytes\":{},\"soft_bytes\":{},\"inodes\":{},\
         \"soft_inodes\":{},\"grace_s\":{grace_s},\"over_since_s\":{over_since_s},\"silent_targets\":{silent}}}",
        account.kind.name(),
        account.id,
        used.blocks * BLOCK,
        used.inodes,
        hard.blocks.saturating_mul(BLOCK),
        soft.blocks.saturating_mul(BLOCK),
        hard.inodes,
        soft.inodes,
    )
}

async fn ask(mount: &Mount, ctx: &Ctx, op: Request) -> Result<(Vec<AccountView>, bool)> {
    match mount.call(LEDGER, &ctx.cred, op).await? {
        Reply::Accounts { accounts, more } => Ok((accounts, more)),
        other => Err(unexpected(&other)),
    }
}

pub(crate) async fn account(mount: &Mount, ctx: &Ctx, account: Account) -> Result<AccountView> {
    let (accounts, _) = ask(mount, ctx, Request::Account { account }).await?;
    accounts.first().copied().ok_or(Errno::Proto)
}

async fn list(mount: &Mount, ctx: &Ctx, after: Option<Account>) -> Result<String> {
    let (accounts, mut more) = ask(mount, ctx, Request::Accounts { after }).await?;
    let mut text = String::from("{\"accounts\":[");
    for (at, view) in accounts.iter().enumerate() {
        let one = json(view);
        if text.len() + one.len() > TEXT_MAX {
            more = true;
            break;
        }
        text.push_str(if at > 0 { "," } else { "" });
        text.push_str(&one);
    }
    let _ = write!(text, "],\"more\":{more}}}");
    Ok(text)
}

pub(super) async fn get(mount: &Arc<Mount>, ctx: &Ctx, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
    let name = std::str::from_utf8(name).map_err(|_| Errno::NoData)?;
    if name == PROJECT {
        return Ok(charged_project(mount, ctx, ino).await?.to_string().into_bytes());
    }
    let parts: Vec<&str> = name.split('.').skip(1).collect();
    let text = match parts.as_slice() {
        [] => list(mount, ctx, None).await?,
        ["after", kind, id] => list(mount, ctx, Some(account_of(kind, id).ok_or(Errno::NoData)?)).await?,
        [kind, id] => json(&account(mount, ctx, account_of(kind, id).ok_or(Errno::NoData)?).await?),
        _ => return Err(Errno::NoData),
    };
    Ok(text.into_bytes())
}

/// The project of an inode; 0 means none.
pub(crate) async fn charged_project(mount: &Arc<Mount>, ctx: &Ctx, ino: Ino) -> Result<u32> {
    match mount.call(ino.target(), &ctx.cred, Request::Charged { ino }).await? {
        Reply::Owner(owner) => Ok(owner.project),
        other => Err(unexpected(&other)),
    }
}

/// The limits `before`, changed by `words`.
fn changed(before: Limits, words: &[&str]) -> std::result::Result<Limits, String> {
    let mut limits = before;
    for word in words {
        let (name, value) = word.split_once('=').ok_or_else(|| format!("{word:?} is not of the form NAME=NUMBER"))?;
        let number: u64 = value.parse().map_err(|_| format!("{value:?} is no number"))?;
        match name {
            "bytes" => limits.hard.blocks = number.div_ceil(BLOCK),
            "soft_bytes" => limits.soft.blocks = number.div_ceil(BLOCK),
            "inodes" => limits.hard.inodes = number,
            "soft_inodes" => limits.soft.inodes = number,
            "grace_s" => limits.grace_s = number,
            _ => return Err(format!("{name:?} is none of bytes, soft_bytes, inodes, soft_inodes, grace_s")),
        }
    }
    Ok(limits)
}

pub(super) async fn set(mount: &Arc<Mount>, ctx: &Ctx, ino: Ino, name: &[u8], text: &str) -> Result<()> {
    if name == PROJECT.as_bytes() {
        return set_project(mount, ctx, ino, text).await;
    }
    if name != QUOTA.as_bytes() {
        return control::set(mount, ctx, name, text).await;
    }
    let words: Vec<&str> = text.split_whitespace().collect();
    let [kind, id, words @ ..] = words.as_slice() else {
        return Err(mount.complain(format!("{text:?} is not of the form KIND ID NAME=NUMBER ...")));
    };
    let of = account_of(kind, id).ok_or_else(|| mount.complain(format!("{kind} {id} is no account")))?;
    let before = account(mount, ctx, of).await?.limits;
    let before = if before.is_none() { Limits { grace_s: Limits::GRACE_S, ..before } } else { before };
    let limits = changed(before, words).map_err(|text| mount.complain(text))?;
    let above = |soft: u64, hard: u64| soft != 0 && hard != 0 && soft > hard;
    if above(limits.soft.blocks, limits.hard.blocks) || above(limits.soft.inodes, limits.hard.inodes) {
        return Err(mount.complain("a soft limit is above the hard one".into()));
    }
    match mount.call(LEDGER, &ctx.cred, Request::SetLimits { account: of, limits }).await {
        Ok(Reply::Done) => Ok(()),
        Ok(other) => Err(unexpected(&other)),
        Err(Errno::Inval) => Err(mount.complain(format!("{of} cannot be limited"))),
        Err(e) => Err(e),
    }
}

/// Decodes hexadecimal digits.
fn unhex(digits: &str) -> Option<Vec<u8>> {
    let digit = |c: u8| (c as char).to_digit(16).map(|d| d as u8);
    let pairs = digits.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?)).collect()
}

/// Sets the project of an inode. With `NUMBER of NAME` (in hexadecimal digits) it sets that of the entry with this name
/// in the directory: symbolic links and special files cannot have such attributes themselves.
async fn set_project(mount: &Arc<Mount>, ctx: &Ctx, ino: Ino, text: &str) -> Result<()> {
    let (text, name) = match text.split_once(" of ") {
        Some((number, name)) => (number, Some(unhex(name).ok_or(Errno::Inval)?)),
        None => (text, None),
    };
    let ino = match name {
        Some(name) => crate::ops::name::lookup(mount.clone(), ctx.clone(), ino, name).await?.ino,
        None => ino,
    };
    let project = match text {
        "new" => match mount.call(LEDGER, &ctx.cred, Request::NewProject).await? {
            Reply::Project(project) => project,
            other => return Err(unexpected(&other)),
        },
        number => number.parse().map_err(|_| mount.complain(format!("{number:?} is no number of a project")))?,
    };
    let set = SetAttr { project: Some(project), ..SetAttr::default() };
    crate::ops::attr::setattr(mount.clone(), ctx.clone(), ino, set, None).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use amphi_types::Amount;

    /// Goal: words change only the settings that they name, and errors are explained. Method: a table.
    #[test]
    fn words_make_limits() {
        let before = Limits { hard: Amount { blocks: 5, inodes: 6 }, soft: Amount::default(), grace_s: 9 };
        let limits = changed(before, &["bytes=4097", "soft_inodes=3"]).expect("limits");
        assert_eq!((limits.hard, limits.soft), (Amount { blocks: 2, inodes: 6 }, Amount { blocks: 0, inodes: 3 }));
        assert_eq!(changed(before, &[]), Ok(before));
        for (word, why) in [("bytes", "NAME=NUMBER"), ("bytes=-1", "no number"), ("size=1", "none of")] {
            assert!(changed(before, &[word]).is_err_and(|text| text.contains(why)), "{word}");
        }
        for (digits, bytes) in
            [("", Some(&b""[..])), ("6162ff", Some(b"ab\xff")), ("6", None), ("6g", None), ("+1", None)]
        {
            assert_eq!(unhex(digits).as_deref(), bytes, "{digits}");
        }
        assert_eq!(account_of("user", "7").map(|a| a.to_string()), Some("user 7".into()));
        assert_eq!((account_of("tree", "7"), account_of("user", "4294967296")), (None, None));
    }
}
