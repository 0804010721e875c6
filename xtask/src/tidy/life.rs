//! docs/LIFE.md against the code: whether every step of a walk is there, and follows from one before it.
//!
//! Owns: reading the walks, finding functions and their calls in the text of the code. Does not own: whether what a
//! step says of its function is true, which takes a reader.
//!
//! A walk is a section with numbered steps: ``3. `FILE` `FUNCTION`: sentence``. Rules: steps are numbered from 1
//! without a gap; FILE defines FUNCTION; a step is called by one before it; what one function calls one after the other
//! stands in that order. Where no call leads to a step, its cause stands before the colon:
//!
//! * ``, by the message `Request::Read` `` and the like: a step before it has this word, in its function or in those of
//!   the same file that this one calls.
//! * `, later` and `, by the kernel`: a timer, a queue or the kernel begins it, and no order is checked there.
//!
//! Calls are found by name. A step is called by one before it if a way of calls leads there that stays in the file of
//! that one or passes through one function of another file, of either step's crate, and through no other step: what
//! comes behind a step in the code cannot stand before it in the walk.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::Path;

/// The document with the walks.
pub const LIFE: &str = "docs/LIFE.md";

/// Functions of other files through which a way of calls may lead from a step to the next one.
const BRIDGES_MAX: usize = 1;

/// Checks `text` against the code. `sources`: paths below `root` with their text; files that are named and not among
/// them are read.
pub fn check(root: &Path, text: &str, sources: &[(String, String)], findings: &mut Vec<String>) {
    let named = named(text);
    let mut files: Vec<(String, String)> = sources.to_vec();
    let others: BTreeSet<&str> = named.iter().map(|(path, _)| *path).collect();
    for path in others.into_iter().filter(|path| !sources.iter().any(|(known, _)| known == path)) {
        files.extend(fs::read_to_string(root.join(path)).map(|text| (path.to_string(), text)));
    }
    let code = Code::new(&files);
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

/// The files that a text names, each with the function that stands behind it, as `path.rs` `function`.
fn named(text: &str) -> Vec<(&str, Option<&str>)> {
    // Every second part is code; between a file and its function there is nothing but blanks.
    let parts: Vec<&str> = text.split('`').collect();
    let is_file = |part: &str| part.starts_with("crates/") && (part.ends_with(".rs") || part.ends_with(".c"));
    let files = parts.iter().enumerate().skip(1).step_by(2).filter(|(_, part)| is_file(part));
    let function = |k: usize| parts.get(k + 2).filter(|_| parts[k + 1].trim().is_empty()).copied();
    files.map(|(k, part)| (*part, function(k))).collect()
}

/// Why a step follows.
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

/// The number at the start of a line of steps, and what stands behind it.
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
    /// Whether each step follows from one before it.
    fn follow(&self, code: &Code, findings: &mut Vec<String>) {
        let steps: Vec<Vec<Place>> = self.steps.iter().map(|s| code.defined(&s.file, &s.function)).collect();
        // By which step each is called.
        let mut callers: Vec<Option<usize>> = vec![None; steps.len()];
        for (k, step) in self.steps.iter().enumerate().skip(1).filter(|(k, _)| !steps[*k].is_empty()) {
            let found = match &step.cause {
                Cause::Outside => continue,
                Cause::Word(word) => match steps[..k].iter().flatten().any(|from| code.says(*from, word)) {
                    true => continue,
                    false => format!("no step before it has {word}"),
                },
                Cause::Call => match self.caller(code, &steps, &callers, k) {
                    Ok(caller) => {
                        callers[k] = Some(caller);
                        continue;
                    }
                    Err(why) => why,
                },
            };
            findings.push(format!("{LIFE}: {}, step {} ({}): {found}", self.name, k + 1, step.function));
        }
    }

    /// The nearest step before step `k` that calls it, behind the others that it calls before.
    fn caller(
        &self,
        code: &Code,
        steps: &[Vec<Place>],
        callers: &[Option<usize>],
        k: usize,
    ) -> Result<usize, String> {
        let mut why = String::from("no step before it calls it");
        for (j, from) in (0..k).rev().flat_map(|j| steps[j].iter().map(move |from| (j, *from))) {
            let way = |to: usize, order| {
                let others = steps.iter().enumerate().filter(|(i, _)| *i != to).flat_map(|(_, places)| places).copied();
                let step = &self.steps[to];
                code.way(from, (&step.file, &step.function), &others.collect(), order)
            };
            let Some(last) = way(k, Order::LastFirst) else { continue };
            let siblings = (j + 1..k).filter(|i| callers[*i] == Some(j));
            match siblings.into_iter().find(|i| way(*i, Order::FirstFirst).is_some_and(|first| first > last)) {
                None => return Ok(j),
                Some(i) => {
                    let (caller, sibling) = (&self.steps[j].function, &self.steps[i].function);
                    why = format!("{caller} calls it before step {} ({sibling})", i + 1);
                }
            }
        }
        Err(why)
    }
}

/// A function: the numbers of its file and of itself there.
type Place = (usize, usize);

/// In which order the calls of a function are looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    FirstFirst,
    LastFirst,
}

struct File<'a> {
    path: &'a str,
    /// Without comments and text of strings, byte by byte where it was.
    text: String,
    functions: Vec<Function>,
    is_test: bool,
}

struct Function {
    name: String,
    body: Range<usize>,
    /// What it calls, with where.
    calls: Vec<(usize, String)>,
}

/// The functions of all files.
struct Code<'a> {
    files: Vec<File<'a>>,
    by_name: BTreeMap<String, Vec<Place>>,
}

impl<'a> Code<'a> {
    fn new(files: &'a [(String, String)]) -> Code<'a> {
        let files: Vec<File> = files.iter().map(|(path, text)| File::new(path, text)).collect();
        let mut by_name: BTreeMap<String, Vec<Place>> = BTreeMap::new();
        for (f, file) in files.iter().enumerate().filter(|(_, file)| !file.is_test) {
            for (n, function) in file.functions.iter().enumerate() {
                by_name.entry(function.name.clone()).or_default().push((f, n));
            }
        }
        Code { files, by_name }
    }

    /// The functions of this name that a file defines.
    fn defined(&self, path: &str, name: &str) -> Vec<Place> {
        let places = self.by_name.get(name).into_iter().flatten();
        places.filter(|(f, _)| self.files[*f].path == path).copied().collect()
    }

    /// Where a way of calls leads from a function to one of that file and name, call by call: the first or the last
    /// one.
    fn way(&self, from: Place, to: (&str, &str), others: &BTreeSet<Place>, order: Order) -> Option<Vec<usize>> {
        let crates = [krate(self.files[from.0].path), krate(to.0)];
        let mut search = Search { code: self, to: to.1, crates, others, order, seen: BTreeMap::new(), way: Vec::new() };
        search.look(from, 0).then_some(search.way)
    }

    /// Whether a function, or one of its file that it calls, has a word.
    fn says(&self, from: Place, word: &str) -> bool {
        let mut todo = vec![from];
        let mut seen = BTreeSet::from([from]);
        while let Some((f, n)) = todo.pop() {
            let function = &self.files[f].functions[n];
            if has_word(&self.files[f].text[function.body.clone()], word) {
                return true;
            }
            for (_, name) in &function.calls {
                let here = self.by_name.get(name).into_iter().flatten().filter(|place| place.0 == f);
                todo.extend(here.filter(|place| seen.insert(**place)));
            }
        }
        false
    }
}

struct Search<'a> {
    code: &'a Code<'a>,
    to: &'a str,
    crates: [&'a str; 2],
    others: &'a BTreeSet<Place>,
    order: Order,
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
        let mut calls: Vec<&(usize, String)> = code.files[at.0].functions[at.1].calls.iter().collect();
        if self.order == Order::LastFirst {
            calls.sort_by_key(|(place, _)| Reverse(*place));
        }
        for (place, name) in calls {
            self.way.push(*place);
            if name == self.to {
                return true;
            }
            for &next in code.by_name.get(name).into_iter().flatten() {
                let crossed = bridges + usize::from(next.0 != at.0);
                let is_near = self.crates.contains(&krate(code.files[next.0].path));
                if is_near && crossed <= BRIDGES_MAX && !self.others.contains(&next) && self.look(next, crossed) {
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

/// Whether `word` stands alone somewhere in `text`.
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
        File { path, text, functions, is_test }
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

/// Whether a character stands behind an apostrophe, and not a lifetime.
fn is_character(rest: &str) -> bool {
    let mut chars = rest.chars();
    match chars.next() {
        Some('\\') => true,
        Some(_) => chars.next() == Some('\''),
        None => false,
    }
}

/// Where what is quoted from `at` on ends.
fn quoted(bytes: &[u8], at: usize, quote: u8) -> usize {
    let mut end = at + 1;
    while end < bytes.len() && bytes[end] != quote {
        end += if bytes[end] == b'\\' { 2 } else { 1 };
    }
    (end + 1).min(bytes.len())
}

/// Where the bracket that opens at `at` is closed.
fn closed(text: &str, at: usize) -> usize {
    let bytes = text.as_bytes();
    let (open, close) = match bytes[at] {
        b'(' => (b'(', b')'),
        b'[' => (b'[', b']'),
        _ => (b'{', b'}'),
    };
    let mut depth = 0;
    for (n, byte) in bytes[at..].iter().enumerate() {
        depth += i32::from(*byte == open) - i32::from(*byte == close);
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
            calls.push((at, word.to_string()));
        }
        before = word;
    }
    Function { name: name.to_string(), body, calls }
}

fn functions_of_rust(text: &str) -> Vec<Function> {
    let mut functions = Vec::new();
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
        functions.extend(body.map(|body| function(text, name, body)));
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

    /// A front end in C and Rust that calls through a file between, sends a message, and what takes it.
    fn tree() -> Vec<(String, String)> {
        let file = |path: &str, text: &str| (path.to_string(), text.to_string());
        vec![
            file(
                SHIM,
                "#define F(x) \\\n  int x(void) { return finish(0); }\nstatic int start(int a)\n{\n    return begin(a);\n}\n",
            ),
            file(
                FRONT,
                "//! Head.\nfn begin<T>(a: [u8; 4]) -> u8 {\n    // finish(a) comes later\n    let c = '\"';\n    check(a);\n    \
                 glue(a);\n    finish(a)\n}\nfn check(_: u8) {}\nfn finish(_: u8) {}\nfn pack(_: &'static str) {\n    \
                 send(Request::Put, \"Request::Get\")\n}\n\n#[cfg(test)]\nmod tests {\n    fn tested() { pack() }\n}\n",
            ),
            file(GLUE, "pub fn glue(a: u8) {\n    pack(a)\n}\n"),
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
        check(Path::new("/nowhere"), text, &tree(), &mut findings);
        findings
    }

    /// Goal: a walk that is true is found so; one of which any two neighbours with a cause in the code are swapped is
    /// not. Method: a tree by hand with each kind of step: C, a file, a file between, siblings, a message, a timer.
    #[test]
    fn a_swapped_walk_fails() {
        assert_eq!(checked(&STEPS), Vec::<String>::new());
        for at in 1..STEPS.len() - 2 {
            let mut steps = STEPS;
            steps.swap(at, at + 1);
            // Whoever has sent the message does not wait for who takes it.
            let is_free = steps[at].contains("`take`");
            assert_eq!(checked(&steps).is_empty(), is_free, "{at}: {:?}", checked(&steps));
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

    /// Goal: what is no walk is found: gaps, steps in one paragraph, files and functions that are not there, tests in
    /// place of functions, steps without a sentence or with a strange cause. Method: one mistake at a time.
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
