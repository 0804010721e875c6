//! The check of docs/LIFE.md against the code: whether every step of a walk exists, and follows from a step before it.
//!
//! Owns: reading the walks, finding functions and their calls in the text of the code. Does not own: whether the
//! sentence of a step about its function is true, which a reader has to check.
//!
//! A walk is a section with numbered steps: ``3. `FILE` `FUNCTION`: sentence``. Rules: steps are numbered from 1
//! without a gap; FILE defines FUNCTION; a step follows from a step before it, by a call or by the cause that is named
//! before the colon:
//!
//! * ``, by the message `Request::Read` `` and the like: a step before it has this word, in its function or in those of
//!   the same file that this one calls.
//! * `, later` and `, by the kernel`: a timer, a queue or the kernel begins it, and nothing is checked.
//!
//! The order is that of the code, depth first: between a step and a later step that its function calls, there are only
//! steps that follow from it and that its function calls before that one. So the check finds steps that are swapped,
//! unless the text of the code does not determine their order, as with a function that is called again later, or with a
//! function that sends something and does not wait.
//!
//! Calls are found by name. The text before the name says where the function is: `self.` in the file or crate of the
//! caller; `flush::` or `zone.` in a file, folder, crate or type of that name, if there is one; no text, in the file of
//! the caller or in a file that it imports. A crate calls the crates that it imports and, through traits, those that
//! import it. A step is called by a step before it if a chain of calls leads to it that stays in the file of that step
//! or passes through one function of another file (`BRIDGES_MAX`), and through no other step.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::Path;

/// The document with the walks.
pub const LIFE: &str = "docs/LIFE.md";

/// The number of functions of other files through which a chain of calls may lead from a step to the next one.
const BRIDGES_MAX: usize = 1;

/// Which crates a crate imports.
pub type Imports = [(&'static str, &'static [&'static str])];

/// Checks `text` against the code. `sources`: paths below `root` with their text; files that are named and not among
/// them are read.
pub fn check(root: &Path, text: &str, sources: &[(String, String)], imports: &Imports, findings: &mut Vec<String>) {
    let named = named(text);
    let mut files: Vec<(String, String)> = sources.to_vec();
    let others: BTreeSet<&str> = named.iter().map(|(path, _)| *path).collect();
    for path in others.into_iter().filter(|path| !sources.iter().any(|(known, _)| known == path)) {
        files.extend(fs::read_to_string(root.join(path)).map(|text| (path.to_string(), text)));
    }
    let code = Code::new(&files, imports);
    for (path, function) in &named {
        if !code.files.iter().any(|f| f.path == *path) {
            findings.push(format!("{LIFE}: there is no {path}"));
        } else if let Some(function) = function
            && code.defined(path, function).is_empty()
        {
            findings.push(format!("{LIFE}: {path} has no function {function}"));
        }
    }
    let walks = walks(text, findings);
    if walks.is_empty() {
        findings.push(format!("{LIFE}: has no walks"));
    }
    walks.iter().for_each(|walk| walk.follow(&code, findings));
}

/// Returns the files that a text names, each with the function that is named behind it, as `path.rs` `function`.
fn named(text: &str) -> Vec<(&str, Option<&str>)> {
    // Every second part is code; between a file and its function there is nothing but blanks.
    let parts: Vec<&str> = text.split('`').collect();
    let is_file = |part: &str| part.starts_with("crates/") && (part.ends_with(".rs") || part.ends_with(".c"));
    let files = parts.iter().enumerate().skip(1).step_by(2).filter(|(_, part)| is_file(part));
    let function = |k: usize| parts.get(k + 2).filter(|_| parts[k + 1].trim().is_empty()).copied();
    files.map(|(k, part)| (*part, function(k))).collect()
}

/// The reason why a step follows.
#[derive(Debug, PartialEq, Eq)]
enum Cause {
    /// A step before it calls it.
    Call,
    /// A step before it has this word.
    Word(String),
    /// Nothing that the text of the code shows.
    Outside,
}

#[derive(Debug)]
struct Step {
    file: String,
    function: String,
    cause: Cause,
}

#[derive(Debug)]
struct Walk {
    name: String,
    steps: Vec<Step>,
}

/// Returns the number at the start of a line of steps, and the text behind it.
fn numbered(line: &str) -> Option<(usize, &str)> {
    let (number, rest) = line.split_once(". ")?;
    Some((number.parse().ok()?, rest))
}

/// The walks of a text.
fn walks(text: &str, findings: &mut Vec<String>) -> Vec<Walk> {
    let mut walks: Vec<Walk> = Vec::new();
    let mut name = String::new();
    // A step with its number, line by line.
    let mut items: Vec<(String, usize, String)> = Vec::new();
    let mut is_in_step = false;
    for (n, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        let words: Vec<&str> = trimmed.split(' ').collect();
        let begins = |pair: &[&str]| {
            pair[0].strip_suffix('.').is_some_and(|n| n.parse::<usize>().is_ok()) && pair[1].starts_with("`crates/")
        };
        if words.windows(2).skip(1).any(begins) {
            findings.push(format!("{LIFE}:{}: a step begins in the middle of a line", n + 1));
        }
        if let Some(heading) = line.strip_prefix("## ") {
            (name, is_in_step) = (heading.to_string(), false);
        } else if let Some((number, rest)) = numbered(line) {
            items.push((name.clone(), number, rest.to_string()));
            is_in_step = true;
        } else if trimmed.is_empty() {
            is_in_step = false;
        } else if let Some((_, _, item)) = items.last_mut().filter(|_| is_in_step) {
            item.push(' ');
            item.push_str(trimmed);
        }
    }
    for (name, number, item) in items {
        if walks.last().is_none_or(|walk| walk.name != name) {
            walks.push(Walk { name: name.clone(), steps: Vec::new() });
        }
        let Some(walk) = walks.last_mut() else { continue };
        if number != walk.steps.len() + 1 {
            findings.push(format!("{LIFE}: {name}: step {number} where {} is due", walk.steps.len() + 1));
        }
        match step(&item) {
            Ok(step) => walk.steps.push(step),
            Err(why) => {
                findings.push(format!("{LIFE}: {name}, step {number}: {why}"));
                let (file, function) = Default::default();
                walk.steps.push(Step { file, function, cause: Cause::Outside });
            }
        }
    }
    walks
}

/// A step as its item says.
fn step(item: &str) -> Result<Step, String> {
    let parts: Vec<&str> = item.splitn(5, '`').collect();
    let [before, file, between, function, rest] = parts[..] else {
        return Err("does not begin with a file and a function".into());
    };
    if !before.is_empty() || !between.trim().is_empty() {
        return Err("does not begin with a file and a function".into());
    }
    // The first colon outside of code.
    let mut in_code = false;
    let colon = rest.char_indices().find(|(at, c)| {
        in_code ^= *c == '`';
        *c == ':' && !in_code && rest[at + 1..].starts_with(' ')
    });
    let Some((colon, _)) = colon else { return Err("has no sentence behind a colon".into()) };
    let (cause, sentence) = (rest[..colon].trim(), rest[colon + 1..].trim());
    if !sentence.ends_with(['.', ')']) {
        return Err("does not end with a full stop".into());
    }
    let cause = match cause {
        "" => Cause::Call,
        ", later" | ", by the kernel" => Cause::Outside,
        _ => match cause.split('`').collect::<Vec<_>>()[..] {
            [before, word, ""] if before.starts_with(", ") => Cause::Word(word.to_string()),
            _ => return Err(format!("has no known cause: {cause}")),
        },
    };
    Ok(Step { file: file.to_string(), function: function.to_string(), cause })
}

impl Walk {
    /// Returns whether each step follows from a step before it.
    fn follow(&self, code: &Code, findings: &mut Vec<String>) {
        let steps: Vec<Vec<Place>> = self.steps.iter().map(|s| code.defined(&s.file, &s.function)).collect();
        // Returns the step from which each step follows.
        let mut befores: Vec<usize> = vec![0];
        for (k, step) in self.steps.iter().enumerate().skip(1) {
            let says = |j: &usize, word: &str| steps[*j].iter().any(|from| code.says(*from, word));
            let found = match &step.cause {
                // The absent step has been found.
                _ if steps[k].is_empty() => Ok(k - 1),
                Cause::Outside => Ok(k - 1),
                Cause::Word(word) => {
                    (0..k).rev().find(|j| says(j, word)).ok_or_else(|| format!("no step before it has {word}"))
                }
                Cause::Call => self.caller(code, &steps, &befores),
            };
            befores.push(found.as_ref().copied().unwrap_or(k - 1));
            if let Err(why) = found {
                findings.push(format!("{LIFE}: {}, step {} ({}): {why}", self.name, k + 1, step.function));
            }
        }
    }

    /// Returns the nearest step that calls the next one after `befores`: it must be behind all steps since that it
    /// calls, which all follow from it.
    fn caller(&self, code: &Code, steps: &[Vec<Place>], befores: &[usize]) -> Result<usize, String> {
        let k = befores.len();
        let mut why = String::from("no step before it calls it");
        let follows = |mut step: usize, j: usize| {
            while step > j {
                step = befores[step];
            }
            step == j
        };
        for (j, from) in (0..k).rev().flat_map(|j| steps[j].iter().map(move |from| (j, *from))) {
            let way = |to: usize, order| {
                let others = steps.iter().enumerate().filter(|(i, _)| *i != to).flat_map(|(_, places)| places).copied();
                let step = &self.steps[to];
                code.way(from, &steps[to], (&others.collect(), &step.function), order)
            };
            let Some(last) = way(k, Order::LastFirst) else { continue };
            let caller = &self.steps[j].function;
            let is_later = |i: &usize| match follows(*i, j) {
                true => befores[*i] == j && way(*i, Order::FirstFirst).is_some_and(|first| first > last),
                false => true,
            };
            match (j + 1..k).find(is_later) {
                None => return Ok(j),
                Some(i) => why = format!("{caller} calls it before step {} ({})", i + 1, self.steps[i].function),
            }
        }
        Err(why)
    }
}

/// A function: the numbers of its file and of itself there.
type Place = (usize, usize);

/// The order in which the calls of a function are examined.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    FirstFirst,
    LastFirst,
}

struct File<'a> {
    path: &'a str,
    /// The text without comments and contents of strings; each byte stays at its place.
    text: String,
    /// The names that it imports.
    uses: String,
    functions: Vec<Function>,
    is_test: bool,
}

struct Function {
    name: String,
    body: Range<usize>,
    calls: Vec<Call>,
    /// Whether it is called with a dot.
    is_method: bool,
    /// The type that it belongs to, in lowercase letters, and whether a trait declares it.
    owner: String,
    is_of_trait: bool,
}

/// The text before the name of a function that is called.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Before {
    Nothing,
    /// `self.`
    Own,
    /// `word.`; empty if it is no word.
    Dot(String),
    /// `word::`.
    Path(String),
}

struct Call {
    at: usize,
    name: String,
    before: Before,
}

/// The functions of all files.
struct Code<'a> {
    files: Vec<File<'a>>,
    by_name: BTreeMap<String, Vec<Place>>,
    /// Pairs of crates of which the first one imports the second.
    imports: BTreeSet<(&'static str, &'static str)>,
}

impl<'a> Code<'a> {
    fn new(files: &'a [(String, String)], imports: &Imports) -> Code<'a> {
        let files: Vec<File> = files.iter().map(|(path, text)| File::new(path, text)).collect();
        let mut by_name: BTreeMap<String, Vec<Place>> = BTreeMap::new();
        for (f, file) in files.iter().enumerate().filter(|(_, file)| !file.is_test) {
            for (n, function) in file.functions.iter().enumerate() {
                by_name.entry(function.name.clone()).or_default().push((f, n));
            }
        }
        let imports = imports.iter().flat_map(|(from, to)| to.iter().map(|to| (*from, *to))).collect();
        Code { files, by_name, imports }
    }

    /// The functions of this name that a file defines.
    fn defined(&self, path: &str, name: &str) -> Vec<Place> {
        let places = self.by_name.get(name).into_iter().flatten();
        places.filter(|(f, _)| self.files[*f].path == path).copied().collect()
    }

    /// The functions that a call in a file may mean.
    fn meant(&self, from: usize, call: &Call) -> Vec<Place> {
        let caller = &self.files[from];
        let is_reached = |place: &&Place| {
            let (here, there) = (krate(caller.path), krate(self.files[place.0].path));
            let function = &self.files[place.0].functions[place.1];
            let is_above = self.imports.contains(&(there, here)) && function.is_of_trait;
            let is_dot = matches!(call.before, Before::Own | Before::Dot(_));
            (here == there || self.imports.contains(&(here, there)) || is_above) && (function.is_method || !is_dot)
        };
        let all: Vec<Place> = self.by_name.get(&call.name).into_iter().flatten().filter(is_reached).copied().collect();
        let only = |of: &dyn Fn(&File, &Function) -> bool| -> Vec<Place> {
            let fits = |place: &&Place| of(&self.files[place.0], &self.files[place.0].functions[place.1]);
            all.iter().filter(fits).copied().collect()
        };
        let here = only(&|file, _| file.path == caller.path);
        match &call.before {
            Before::Nothing | Before::Own if !here.is_empty() => here,
            Before::Own => only(&|file, _| krate(file.path) == krate(caller.path)),
            Before::Nothing if caller.path.ends_with(".c") || has_word(&caller.uses, &call.name) => {
                only(&|_, function| !function.is_method)
            }
            Before::Nothing => Vec::new(),
            Before::Dot(word) | Before::Path(word) => {
                let word = word.strip_prefix("amphi_").unwrap_or(word);
                let (suffix, owner) = (format!("_{word}"), word.replace('_', "").to_lowercase());
                let is_part = |part: &str| part == word || part.ends_with(&suffix);
                let named = only(&|file, function| {
                    let is_type = !owner.is_empty() && function.owner.ends_with(&owner);
                    is_type || file.path.trim_end_matches(".rs").split('/').any(is_part)
                });
                if named.is_empty() || word.is_empty() { all } else { named }
            }
        }
    }

    /// Returns a chain of calls that leads from a function to one of `to`, call by call: of those with the fewest
    /// bridges, the first or the last one. `others` are not passed.
    fn way(
        &self,
        from: Place,
        to: &[Place],
        (others, name): (&BTreeSet<Place>, &str),
        order: Order,
    ) -> Option<Vec<usize>> {
        (0..=BRIDGES_MAX).find_map(|bridges_max| {
            let (seen, way) = (BTreeMap::new(), Vec::new());
            let mut search = Search { code: self, to, name, others, order, bridges_max, seen, way };
            search.look(from, 0).then_some(search.way)
        })
    }

    /// Returns whether a function, or one of its file that it calls, has a word.
    fn says(&self, from: Place, word: &str) -> bool {
        let mut todo = vec![from];
        let mut seen = BTreeSet::from([from]);
        while let Some((f, n)) = todo.pop() {
            let function = &self.files[f].functions[n];
            if has_word(&self.files[f].text[function.body.clone()], word) {
                return true;
            }
            for call in &function.calls {
                let here = self.meant(f, call).into_iter().filter(|place| place.0 == f);
                todo.extend(here.filter(|place| seen.insert(*place)));
            }
        }
        false
    }
}

struct Search<'a> {
    code: &'a Code<'a>,
    to: &'a [Place],
    name: &'a str,
    others: &'a BTreeSet<Place>,
    order: Order,
    bridges_max: usize,
    /// Functions that lead nowhere, with the bridges before them.
    seen: BTreeMap<Place, usize>,
    way: Vec<usize>,
}

impl Search<'_> {
    fn look(&mut self, at: Place, bridges: usize) -> bool {
        if self.seen.get(&at).is_some_and(|before| *before <= bridges) {
            return false;
        }
        self.seen.insert(at, bridges);
        let code = self.code;
        let mut calls: Vec<&Call> = code.files[at.0].functions[at.1].calls.iter().collect();
        if self.order == Order::LastFirst {
            calls.sort_by_key(|call| Reverse(call.at));
        }
        for call in calls {
            let meant = code.meant(at.0, call);
            self.way.push(call.at);
            if call.name == self.name && meant.iter().any(|place| self.to.contains(place)) {
                return true;
            }
            for next in meant {
                let crossed = bridges + usize::from(next.0 != at.0);
                if crossed <= self.bridges_max && !self.others.contains(&next) && self.look(next, crossed) {
                    return true;
                }
            }
            self.way.pop();
        }
        false
    }
}

/// The folder of the crate that a file belongs to.
fn krate(path: &str) -> &str {
    path.strip_prefix("crates/").and_then(|rest| rest.split('/').next()).unwrap_or(path)
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns whether `word` stands alone somewhere in `text`.
fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let (before, behind) = (text[..at].chars().next_back(), text[at + word.len()..].chars().next());
        !before.is_some_and(is_word) && !behind.is_some_and(is_word)
    })
}

impl<'a> File<'a> {
    fn new(path: &'a str, text: &str) -> File<'a> {
        let is_c = path.ends_with(".c");
        let tests = text.match_indices("\n#[cfg(test)]\nmod ").find(|(at, mark)| {
            let line = text[at + mark.len()..].lines().next().unwrap_or_default();
            line.ends_with('{')
        });
        let text = blank(&text[..tests.map_or(text.len(), |(at, _)| at)], is_c);
        let is_test = ["/tests/", "/tests.rs", "/benches/", "/examples/"].iter().any(|part| path.contains(part));
        let functions = if is_c { functions_of_c(&text) } else { functions_of_rust(&text) };
        let is_use = |part: &&str| {
            let part = part.trim_start();
            part.starts_with("use ") || (part.starts_with("pub") && part.contains(" use "))
        };
        let statements = text.split(';').filter(is_use);
        let uses = statements.collect::<Vec<_>>().join("\n");
        File { path, text, uses, functions, is_test }
    }
}

/// The text with blanks in place of comments, strings and characters; of C also of directives.
fn blank(text: &str, is_c: bool) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut erase = |range: Range<usize>| out[range].iter_mut().filter(|b| **b != b'\n').for_each(|b| *b = b' ');
    let find = |from: usize, what: &str| text[from..].find(what).map_or(bytes.len(), |at| from + at);
    let (mut at, mut starts_line) = (0, true);
    while at < bytes.len() {
        let rest = &bytes[at..];
        let word = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
        let end = if rest.starts_with(b"//") {
            find(at, "\n")
        } else if rest.starts_with(b"/*") {
            (find(at + 2, "*/") + 2).min(bytes.len())
        } else if is_c && starts_line && rest[0] == b'#' {
            let mut end = find(at, "\n");
            while bytes[end - 1] == b'\\' && end < bytes.len() {
                end = find(end + 1, "\n");
            }
            end
        } else if !is_c && !word && rest.starts_with(b"r\"") {
            (find(at + 2, "\"") + 1).min(bytes.len())
        } else if !is_c && !word && rest.starts_with(b"r#\"") {
            (find(at + 3, "\"#") + 2).min(bytes.len())
        } else if rest[0] == b'"' {
            quoted(bytes, at, b'"')
        } else if rest[0] == b'\'' && (is_c || is_character(&text[at + 1..])) {
            quoted(bytes, at, b'\'')
        } else {
            starts_line = rest[0] == b'\n' || (starts_line && rest[0].is_ascii_whitespace());
            at += 1;
            continue;
        };
        erase(at..end);
        at = end;
    }
    String::from_utf8(out).unwrap_or_default()
}

/// Returns whether a character stands behind an apostrophe, and not a lifetime.
fn is_character(rest: &str) -> bool {
    let mut chars = rest.chars();
    match chars.next() {
        Some('\\') => true,
        Some(_) => chars.next() == Some('\''),
        None => false,
    }
}

/// Returns the end of the quoted text that begins at `at`.
fn quoted(bytes: &[u8], at: usize, quote: u8) -> usize {
    let mut end = at + 1;
    while end < bytes.len() && bytes[end] != quote {
        end += if bytes[end] == b'\\' { 2 } else { 1 };
    }
    (end + 1).min(bytes.len())
}

/// Returns the place where the bracket that opens at `at` is closed.
fn closed(text: &str, at: usize) -> usize {
    let bytes = text.as_bytes();
    let (open, close) = match bytes[at] {
        b'(' => (b'(', b')'),
        b'[' => (b'[', b']'),
        b'<' => (b'<', b'>'),
        _ => (b'{', b'}'),
    };
    let mut depth = 0;
    for (n, byte) in bytes[at..].iter().enumerate() {
        // The arrow of a result closes nothing.
        let closes = *byte == close && !(close == b'>' && bytes[at + n - 1] == b'-');
        depth += i32::from(*byte == open) - i32::from(closes);
        if depth == 0 {
            return at + n + 1;
        }
    }
    bytes.len()
}

/// The words of a text with where they begin.
fn words(text: &str, range: Range<usize>) -> impl Iterator<Item = (usize, &str)> {
    let start = range.start;
    let mut rest = &text[range];
    let mut at = start;
    std::iter::from_fn(move || {
        let from = rest.find(is_word)?;
        let len = rest[from..].find(|c| !is_word(c)).unwrap_or(rest.len() - from);
        let word = (at + from, &rest[from..from + len]);
        at += from + len;
        rest = &rest[from + len..];
        Some(word)
    })
}

fn function(text: &str, name: &str, body: Range<usize>) -> Function {
    let mut calls = Vec::new();
    let mut before = "";
    for (at, word) in words(text, body.clone()) {
        let behind = text[at + word.len()..body.end].trim_start();
        // Or a path that is handed on: `map(Fetch::run)`.
        let is_path = text[..at].ends_with("::") && behind.starts_with([')', ',']);
        let is_call = behind.starts_with('(') || behind.starts_with("::<") || is_path;
        let is_function = word.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
        if is_call && is_function && before != "fn" {
            let first = text[..at].trim_end();
            let owner =
                first.strip_suffix("::").or_else(|| first.strip_suffix("->")).or_else(|| first.strip_suffix('.'));
            let owned = if owner.is_some_and(|owner| owner.ends_with(before)) { before } else { "" };
            let before = match owner {
                None => Before::Nothing,
                Some(_) if first.ends_with('.') && owned == "self" => Before::Own,
                Some(_) if first.ends_with('.') => Before::Dot(owned.to_string()),
                Some(_) => Before::Path(owned.to_string()),
            };
            calls.push(Call { at, name: word.to_string(), before });
        }
        before = word;
    }
    let (owner, is_of_trait, is_method) = (String::new(), false, false);
    Function { name: name.to_string(), body, calls, is_method, owner, is_of_trait }
}

/// The blocks of `impl`, each with its type in small letters and whether it is of a trait.
fn impls(text: &str) -> Vec<(Range<usize>, String, bool)> {
    let mut blocks = Vec::new();
    for (at, _) in words(text, 0..text.len()).filter(|(at, word)| *word == "impl" && text[..*at].ends_with('\n')) {
        let Some(open) = text[at..].find('{').map(|open| at + open) else { break };
        let head = text[at + 4..open].split(" where").next().unwrap_or_default();
        let generics = head.trim_start().starts_with('<').then(|| closed(head, head.find('<').unwrap_or(0)));
        let head = &head[generics.unwrap_or(0)..];
        let (of, is_of_trait) = head.split_once(" for ").map_or((head, false), |(_, of)| (of, true));
        let owner = of.trim().split('<').next().unwrap_or_default().rsplit(is_no_word).next().unwrap_or_default();
        blocks.push((open..closed(text, open), owner.to_lowercase(), is_of_trait));
    }
    blocks
}

fn is_no_word(c: char) -> bool {
    !is_word(c)
}

fn functions_of_rust(text: &str) -> Vec<Function> {
    let (mut functions, impls) = (Vec::new(), impls(text));
    let mut all = words(text, 0..text.len()).peekable();
    while let Some((_, word)) = all.next() {
        if word != "fn" {
            continue;
        }
        let Some((name_at, name)) = all.peek().copied() else { break };
        let mut at = name_at + name.len();
        let body = loop {
            match text.as_bytes().get(at) {
                None | Some(b';' | b')' | b'}') => break None,
                Some(b'(' | b'[') => at = closed(text, at),
                Some(b'{') => break Some(at..closed(text, at)),
                Some(_) => at += 1,
            }
        };
        let block = impls.iter().find(|(range, ..)| range.contains(&name_at));
        let (owner, is_of_trait) = block.map_or_else(Default::default, |(_, owner, of)| (owner.clone(), *of));
        functions.extend(body.map(|body| {
            let is_method = has_word(text[name_at..body.start].split("->").next().unwrap_or_default(), "self");
            Function { owner, is_of_trait, is_method, ..function(text, name, body) }
        }));
    }
    functions
}

fn functions_of_c(text: &str) -> Vec<Function> {
    let (mut functions, mut at, mut name) = (Vec::new(), 0, "");
    while at < text.len() {
        match text.as_bytes()[at] {
            b'{' => at = closed(text, at),
            b'(' => {
                let end = closed(text, at);
                let body = end + text[end..].len() - text[end..].trim_start().len();
                if text[body..].starts_with('{') && !name.is_empty() {
                    functions.push(function(text, name, body..closed(text, body)));
                }
                at = end;
            }
            byte if byte.is_ascii_alphabetic() || byte == b'_' => {
                name = words(text, at..text.len()).next().map_or("", |(_, word)| word);
                at += name.len();
            }
            _ => at += 1,
        }
    }
    functions
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: &str = "crates/store/src/store.rs";
    const FRONT: &str = "crates/front/src/front.rs";
    const GLUE: &str = "crates/front/src/glue.rs";
    const SHIM: &str = "crates/front/shim/shim.c";

    /// A tree with a front end in C and Rust that calls through a file in between, sends a message, and has a function
    /// that receives it.
    fn tree() -> Vec<(String, String)> {
        let file = |path: &str, text: &str| (path.to_string(), text.to_string());
        vec![
            file(
                SHIM,
                "#define F(x) \\\n  int x(void) { return finish(0); }\nstatic int start(int a)\n{\n    return begin(a);\n}\n",
            ),
            file(
                FRONT,
                "//! Head.\nuse crate::glue::glue;\nfn begin<T>(a: [u8; 4]) -> u8 {\n    // finish(a) comes later\n    let c = '\"';\n    check(a);\n    \
                 glue(a);\n    finish(a)\n}\nfn check(_: u8) {}\nfn finish(_: u8) {}\nfn pack(_: &'static str) {\n    \
                 send(Request::Put, \"Request::Get\")\n}\n\n#[cfg(test)]\nmod tests {\n    fn tested() { pack() }\n}\n",
            ),
            file(GLUE, "use crate::front::pack;\n\npub fn glue(a: u8) {\n    pack(a)\n}\n"),
            file(STORE, "fn take() {\n    loop {\n        keep::<u8>();\n    }\n}\nfn keep() {}\nfn flush() {}\n"),
        ]
    }

    const STEPS: [&str; 8] = [
        "`crates/front/shim/shim.c` `start`: the program calls.",
        "`crates/front/src/front.rs` `begin`: it begins.",
        "`crates/front/src/front.rs` `check`: the argument\n   is looked at.",
        "`crates/front/src/front.rs` `pack`: glue packs it.",
        "`crates/front/src/front.rs` `finish`: the call ends.",
        "`crates/store/src/store.rs` `take`, by the message `Request::Put`: the store takes it: whole.",
        "`crates/store/src/store.rs` `keep`: the store keeps it.",
        "`crates/store/src/store.rs` `flush`, later: the store writes it.",
    ];

    fn checked(steps: &[&str]) -> Vec<String> {
        let list = steps.iter().enumerate().map(|(n, step)| format!("{}. {step}\n", n + 1)).collect::<String>();
        checked_text(&format!("# Life\n\n## A put\n\nWords.\n\n{list}\nBehind, see `{GLUE}` `glue`.\n"))
    }

    fn checked_text(text: &str) -> Vec<String> {
        let mut findings = Vec::new();
        check(Path::new("/nowhere"), text, &tree(), &[("store", &[]), ("front", &["store"])], &mut findings);
        findings
    }

    /// Goal: a walk that is true passes; one in which two neighbours with a cause in the code are swapped does not.
    /// Method: a tree in the test with each kind of step: C, a file, a file between, siblings, a message, a timer.
    #[test]
    fn a_swapped_walk_fails() {
        assert_eq!(checked(&STEPS), Vec::<String>::new());
        for at in 1..STEPS.len() - 2 {
            let mut steps = STEPS;
            steps.swap(at, at + 1);
            assert!(!checked(&steps).is_empty(), "{at}: {steps:?}");
        }
        let mut steps = STEPS;
        steps.swap(2, 4);
        let wrong = "docs/LIFE.md: A put, step 4 (pack): begin calls it before step 3 (finish)";
        assert_eq!(checked(&steps)[0], wrong);
        steps = STEPS;
        steps[5] = "`crates/store/src/store.rs` `take`, by the message `Request::Get`: the store takes it.";
        assert_eq!(checked(&steps), ["docs/LIFE.md: A put, step 6 (take): no step before it has Request::Get"]);
        steps = STEPS;
        steps[5] = "`crates/store/src/store.rs` `take`: the store takes it.";
        assert_eq!(checked(&steps), ["docs/LIFE.md: A put, step 6 (take): no step before it calls it"]);
    }

    /// Goal: texts that are no valid walk are found: gaps, steps in one paragraph, files and functions that do not
    /// exist, tests in place of functions, steps without a sentence or with an unknown cause. Method: one mistake at a
    /// time.
    #[test]
    fn a_walk_has_a_form() {
        let found = |text: &str, what: &str| {
            let findings = checked_text(&format!("## A put\n\n{text}"));
            assert!(findings.iter().any(|f| f.contains(what)), "{text}: {findings:?}");
        };
        let (first, second) = (format!("1. `{FRONT}` `begin`: it begins."), format!("`{FRONT}` `check`: it looks."));
        assert_eq!(checked_text(&format!("## A put\n\n{first}\n2. {second}\n")), Vec::<String>::new());
        found(&format!("{first}\n3. {second}\n"), "step 3 where 2 is due");
        found(&format!("{first} 2. {second}\n"), "a step begins in the middle of a line");
        found(&format!("{first}\n   2. {second}\n\n1. {second}\n"), "step 1 where 2 is due");
        found(&format!("1. `{FRONT}` `gone`: it goes.\n"), "front.rs has no function gone");
        found(&format!("1. `{FRONT}` `tested`: it tests.\n"), "front.rs has no function tested");
        found(&format!("{first}\n\nSee `{STORE}` `begin`.\n"), "store.rs has no function begin");
        found("1. `crates/front/src/gone.rs` `begin`: it begins.\n", "there is no crates/front/src/gone.rs");
        found(&format!("1. `{FRONT}` `begin`\n"), "has no sentence behind a colon");
        found(&format!("1. `{FRONT}` `begin`: it begins\n"), "does not end with a full stop");
        found(&format!("1. `{FRONT}` `begin`, somehow: it begins.\n"), "has no known cause");
        found("1. The front begins.\n", "does not begin with a file and a function");
        found("Nothing.\n", "has no walks");
    }
}
