//! Label selectors: `a=b`, `a!=b`, `a in (b,c)`, `a notin (b)`, `a`, `!a`, `a>1`, `a<1`.

use std::{cmp::Ordering, collections::BTreeMap};

use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use serde_json::Value;

use super::check_length;

/// Most values in a selector of a request; a requirement without values counts as one.
const MOST_VALUES: usize = 1000;

/// A label selector: requirements that must all hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector(Vec<LabelRequirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct LabelRequirement {
    key: String,
    operator: RequirementOperator,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum RequirementOperator {
    Exists,
    Absent,
    In(LabelValues),
    /// The label has none of these values, or the object lacks it.
    NotIn(LabelValues),
    Greater(i64),
    Less(i64),
}

/// Values, each once and sorted, as slices of one text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LabelValues {
    text: Box<str>,
    /// Where each value ends in the text.
    ends: Box<[u32]>,
}

impl LabelValues {
    fn new<'a>(values: impl IntoIterator<Item = &'a str>) -> Self {
        let mut values: Vec<_> = values.into_iter().collect();
        values.sort_unstable();
        values.dedup();
        let mut end = 0;
        let ends = values.iter().map(|value| {
            end += value.len();
            u32::try_from(end).expect("a selector is far shorter than 4 GiB")
        });
        let ends = ends.collect();
        Self { text: values.concat().into(), ends }
    }

    fn get(&self, index: usize) -> &str {
        let start = index.checked_sub(1).map_or(0, |previous| self.ends[previous]);
        &self.text[start as usize..self.ends[index] as usize]
    }

    fn contains(&self, value: &str) -> bool {
        let (mut low, mut high) = (0, self.ends.len());
        while low < high {
            let middle = low.midpoint(high);
            match self.get(middle).cmp(value) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return true,
                Ordering::Greater => high = middle,
            }
        }
        false
    }

    fn to_strings(&self) -> Vec<String> {
        (0..self.ends.len()).map(|index| self.get(index).to_owned()).collect()
    }
}

/// The labels of one object, sorted by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectLabels(Box<[(Box<str>, Box<str>)]>);

impl ObjectLabels {
    /// Reads `metadata.labels`, which is null when absent.
    pub fn from_json(labels: &Value) -> Self {
        let pairs = labels.as_object().into_iter().flatten();
        let text =
            pairs.filter_map(|(key, value)| Some((key.as_str().into(), value.as_str()?.into())));
        let mut labels: Vec<(Box<str>, Box<str>)> = text.collect();
        labels.sort_unstable();
        Self(labels.into())
    }

    /// Reads the labels of an object of Kubernetes' own.
    pub fn of_map(labels: Option<&BTreeMap<String, String>>) -> Self {
        let pairs = labels.into_iter().flatten();
        Self(pairs.map(|(key, value)| (key.as_str().into(), value.as_str().into())).collect())
    }

    fn get(&self, key: &str) -> Option<&str> {
        let index = self.0.binary_search_by(|(label_key, _)| (**label_key).cmp(key)).ok()?;
        Some(&self.0[index].1)
    }
}

impl LabelSelector {
    /// Reads a selector as requests have it. Fails for one that is too long to be kept and
    /// compared.
    pub fn parse(text: &str) -> Result<Self, String> {
        check_length("labelSelector", text)?;
        let mut parser = SelectorParser { tokens: tokenize(text), at: 0 };
        let mut requirements = Vec::new();
        while parser.peek() != &SelectorToken::End {
            requirements.push(parser.parse_requirement()?);
            match parser.next() {
                SelectorToken::Comma if parser.peek() == &SelectorToken::End => {
                    return Err("found '', expected: identifier after ','".into());
                }
                SelectorToken::Comma | SelectorToken::End => {}
                other => return Err(format!("found '{other}', expected: ',' or 'end of string'")),
            }
        }
        let selector = Self(requirements);
        let values = selector.value_count();
        if values > MOST_VALUES {
            return Err(format!(
                "labelSelector has {values} requirements and values; at most {MOST_VALUES} are \
                 compared: ask for fewer at a time"
            ));
        }
        Ok(selector)
    }

    /// Returns the number of values that the requirements list; one without values counts as one.
    pub fn value_count(&self) -> usize {
        let values = self.0.iter().map(|requirement| match &requirement.operator {
            RequirementOperator::In(values) | RequirementOperator::NotIn(values) => {
                values.ends.len()
            }
            _ => 1,
        });
        values.sum()
    }

    /// Reads a selector as objects hold it: `matchLabels` and `matchExpressions`. An absent one
    /// selects all.
    pub fn of_object(selector: Option<&meta::LabelSelector>) -> Result<Self, String> {
        let Some(selector) = selector else { return Ok(Self::default()) };
        let labels = selector.match_labels.iter().flatten().map(|(key, value)| {
            Ok(LabelRequirement {
                key: key.clone(),
                operator: RequirementOperator::In(LabelValues::new([value.as_str()])),
            })
        });
        let expressions = selector.match_expressions.iter().flatten().map(|expression| {
            let values =
                || LabelValues::new(expression.values.iter().flatten().map(String::as_str));
            let operator = match expression.operator.as_str() {
                "In" => RequirementOperator::In(values()),
                "NotIn" => RequirementOperator::NotIn(values()),
                "Exists" => RequirementOperator::Exists,
                "DoesNotExist" => RequirementOperator::Absent,
                other => return Err(format!("{other:?} is not a valid label selector operator")),
            };
            Ok(LabelRequirement { key: expression.key.clone(), operator })
        });
        Ok(Self(labels.chain(expressions).collect::<Result<_, String>>()?))
    }

    /// Returns the requirements in the form that authorization receives. This form has no
    /// comparisons of numbers: with these, authorization checks more than is selected.
    pub fn requirements(&self) -> Vec<meta::LabelSelectorRequirement> {
        let requirements = self.0.iter().filter_map(|LabelRequirement { key, operator }| {
            let (operator, values) = match operator {
                RequirementOperator::Exists => ("Exists", None),
                RequirementOperator::Absent => ("DoesNotExist", None),
                RequirementOperator::In(values) => ("In", Some(values.to_strings())),
                RequirementOperator::NotIn(values) => ("NotIn", Some(values.to_strings())),
                RequirementOperator::Greater(_) | RequirementOperator::Less(_) => return None,
            };
            let (key, operator) = (key.clone(), operator.to_owned());
            Some(meta::LabelSelectorRequirement { key, operator, values })
        });
        requirements.collect()
    }

    /// Returns the bytes of memory that the selector keeps.
    pub fn weight(&self) -> usize {
        let sizes = self.0.iter().map(|LabelRequirement { key, operator }| {
            let values = match operator {
                RequirementOperator::In(values) | RequirementOperator::NotIn(values) => {
                    values.text.len() + size_of_val(&*values.ends)
                }
                _ => 0,
            };
            size_of::<LabelRequirement>() + key.len() + values
        });
        sizes.sum()
    }

    pub fn is_everything(&self) -> bool {
        self.0.is_empty()
    }

    pub fn matches(&self, labels: &ObjectLabels) -> bool {
        self.0.iter().all(|requirement| {
            let value = labels.get(&requirement.key);
            let number = || value.and_then(|value| value.parse::<i64>().ok());
            match &requirement.operator {
                RequirementOperator::Exists => value.is_some(),
                RequirementOperator::Absent => value.is_none(),
                RequirementOperator::In(list) => value.is_some_and(|value| list.contains(value)),
                RequirementOperator::NotIn(list) => value.is_none_or(|value| !list.contains(value)),
                RequirementOperator::Greater(limit) => {
                    number().is_some_and(|number| number > *limit)
                }
                RequirementOperator::Less(limit) => number().is_some_and(|number| number < *limit),
            }
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum SelectorToken {
    Word(String),
    Comma,
    Open,
    Close,
    Not,
    Equal,
    NotEqual,
    Greater,
    Less,
    End,
}

impl std::fmt::Display for SelectorToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Word(word) => word,
            Self::Comma => ",",
            Self::Open => "(",
            Self::Close => ")",
            Self::Not => "!",
            Self::Equal => "=",
            Self::NotEqual => "!=",
            Self::Greater => ">",
            Self::Less => "<",
            Self::End => "",
        })
    }
}

/// Splits the text into tokens; the last one is `End`.
fn tokenize(text: &str) -> Vec<SelectorToken> {
    let mut tokens = Vec::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let token = match c {
            c if c.is_whitespace() => continue,
            ',' => SelectorToken::Comma,
            '(' => SelectorToken::Open,
            ')' => SelectorToken::Close,
            '>' => SelectorToken::Greater,
            '<' => SelectorToken::Less,
            '!' if chars.next_if_eq(&'=').is_some() => SelectorToken::NotEqual,
            '!' => SelectorToken::Not,
            '=' => {
                chars.next_if_eq(&'=');
                SelectorToken::Equal
            }
            first_char => {
                let mut word = String::from(first_char);
                let is_word_char = |c: &char| !c.is_whitespace() && !",()><!=".contains(*c);
                while let Some(c) = chars.next_if(is_word_char) {
                    word.push(c);
                }
                SelectorToken::Word(word)
            }
        };
        tokens.push(token);
    }
    tokens.push(SelectorToken::End);
    tokens
}

struct SelectorParser {
    tokens: Vec<SelectorToken>,
    at: usize,
}

impl SelectorParser {
    fn peek(&self) -> &SelectorToken {
        self.tokens.get(self.at).unwrap_or(&SelectorToken::End)
    }

    fn next(&mut self) -> SelectorToken {
        let token = self.peek().clone();
        self.at += 1;
        token
    }

    fn parse_requirement(&mut self) -> Result<LabelRequirement, String> {
        let parse_error = |message: String| format!("unable to parse requirement: {message}");
        let values = |list: &[String]| LabelValues::new(list.iter().map(String::as_str));
        if self.peek() == &SelectorToken::Not {
            self.next();
            let key = self.parse_key().map_err(parse_error)?;
            return Ok(LabelRequirement { key, operator: RequirementOperator::Absent });
        }
        let key = self.parse_key().map_err(parse_error)?;
        let operator = match self.peek().clone() {
            SelectorToken::Comma | SelectorToken::End => RequirementOperator::Exists,
            SelectorToken::Equal => {
                self.next();
                RequirementOperator::In(LabelValues::new([self
                    .parse_value()
                    .map_err(parse_error)?
                    .as_str()]))
            }
            SelectorToken::NotEqual => {
                self.next();
                RequirementOperator::NotIn(LabelValues::new([self
                    .parse_value()
                    .map_err(parse_error)?
                    .as_str()]))
            }
            SelectorToken::Greater => {
                self.next();
                RequirementOperator::Greater(self.parse_number().map_err(parse_error)?)
            }
            SelectorToken::Less => {
                self.next();
                RequirementOperator::Less(self.parse_number().map_err(parse_error)?)
            }
            SelectorToken::Word(word) if word == "in" => {
                self.next();
                RequirementOperator::In(values(&self.parse_values().map_err(parse_error)?))
            }
            SelectorToken::Word(word) if word == "notin" => {
                self.next();
                RequirementOperator::NotIn(values(&self.parse_values().map_err(parse_error)?))
            }
            other => {
                let expected = "in, notin, =, ==, !=, gt, lt";
                return Err(parse_error(format!("found '{other}', expected: {expected}")));
            }
        };
        Ok(LabelRequirement { key, operator })
    }

    fn parse_key(&mut self) -> Result<String, String> {
        match self.next() {
            SelectorToken::Word(key) if is_qualified_name(&key) => Ok(key),
            SelectorToken::Word(key) => Err(format!(
                "<nil>: Invalid value: {key:?}: name part must consist of alphanumeric characters, \
                 '-', '_' or '.', and must start and end with an alphanumeric character (e.g. \
                 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
                 '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
            )),
            other => Err(format!("found '{other}', expected: identifier")),
        }
    }

    /// A value after `=`, which may be empty.
    fn parse_value(&mut self) -> Result<String, String> {
        match self.peek().clone() {
            SelectorToken::Word(value) => {
                self.next();
                checked_value(value)
            }
            SelectorToken::Comma | SelectorToken::End => Ok(String::new()),
            other => Err(format!("found '{other}', expected: identifier")),
        }
    }

    fn parse_values(&mut self) -> Result<Vec<String>, String> {
        match self.next() {
            SelectorToken::Open => {}
            other => return Err(format!("found '{other}' expected: '('")),
        }
        let mut values = Vec::new();
        loop {
            match self.next() {
                SelectorToken::Word(value) => {
                    values.push(checked_value(value)?);
                    match self.next() {
                        SelectorToken::Comma if self.peek() == &SelectorToken::Close => {
                            values.push(String::new());
                        }
                        SelectorToken::Comma => {}
                        SelectorToken::Close => return Ok(values),
                        other => return Err(format!("found '{other}', expected: ',' or ')'")),
                    }
                }
                // `(,a)` and `()` hold the empty value.
                SelectorToken::Comma => values.push(String::new()),
                SelectorToken::Close => {
                    if values.is_empty() {
                        values.push(String::new());
                    }
                    return Ok(values);
                }
                other => return Err(format!("found '{other}', expected: ',', ')' or identifier")),
            }
        }
    }

    fn parse_number(&mut self) -> Result<i64, String> {
        match self.next() {
            SelectorToken::Word(word) => word.parse().map_err(|_| {
                format!("values[0][]: Invalid value: {word:?}: for 'Gt', 'Lt' operators, the value must be an integer")
            }),
            other => Err(format!("found '{other}', expected: identifier")),
        }
    }
}

fn checked_value(value: String) -> Result<String, String> {
    if value.is_empty() || is_name_part(&value) {
        return Ok(value);
    }
    Err(format!(
        "values[0][]: Invalid value: {value:?}: a valid label must be an empty string or consist of \
         alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric \
         character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is \
         '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
    ))
}

fn is_name_part(text: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.len() <= 63
        && text.chars().all(is_inner)
        && is_edge(text.chars().next())
        && is_edge(text.chars().next_back())
}

fn is_qualified_name(text: &str) -> bool {
    match text.split_once('/') {
        None => is_name_part(text),
        Some((prefix, name)) => {
            let is_label = |part: &str| {
                is_name_part(part)
                    && !part.contains(['_', '.'])
                    && part == part.to_ascii_lowercase()
            };
            prefix.len() <= 253 && prefix.split('.').all(is_label) && is_name_part(name)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_match_as_kubernetes_has_it() {
        let labels = json!({"app": "web", "tier": "", "size": "3", "x.io/y": "z"});
        for (text, expected) in [
            ("", true),
            ("app", true),
            ("!app", false),
            ("!other", true),
            ("app=web", true),
            ("app == web, size>2", true),
            ("size<3", false),
            ("app!=web", false),
            ("other!=web", true),
            ("app in (db, web)", true),
            ("app notin (db,cache)", true),
            ("other notin (db)", true),
            ("other in (db)", false),
            ("tier=", true),
            ("tier in ()", true),
            ("x.io/y=z", true),
            ("app=web,tier", true),
            ("app>1", false),
        ] {
            let selector = LabelSelector::parse(text).unwrap();
            assert_eq!(selector.matches(&ObjectLabels::from_json(&labels)), expected, "{text}");
        }
        assert!(!LabelSelector::parse("a").unwrap().matches(&ObjectLabels::default()));
    }

    #[test]
    fn a_selector_has_so_many_bytes_and_values() {
        let list = |values: usize| {
            let values: Vec<_> = (0..values).map(|at| format!("{at:03x}")).collect();
            format!("a in ({})", values.join(","))
        };
        let longest = LabelSelector::parse(&list(1000)).unwrap();
        assert_eq!(longest.value_count(), 1000);
        for (value, found) in [("000", true), ("3e7", true), ("3e8", false), ("", false)] {
            assert_eq!(
                longest.matches(&ObjectLabels::from_json(&json!({"a": value}))),
                found,
                "{value}"
            );
        }
        assert_eq!(longest.requirements()[0].values.as_ref().map(Vec::len), Some(1000));
        let error = LabelSelector::parse(&list(1001)).unwrap_err();
        assert!(error.contains("1001 requirements and values; at most 1000"), "{error}");
        let error = LabelSelector::parse(&"!a,".repeat(3000)).unwrap_err();
        assert!(error.contains("labelSelector has 9000 bytes; at most 8192"), "{error}");
        let same = LabelSelector::parse(&format!("a in ({})", "b,".repeat(2000))).unwrap();
        assert_eq!(same.requirements()[0].values, Some(vec![String::new(), "b".to_owned()]));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["a=b=c", "=b", "a in b", "a in (b", "a b", "a,", "-a", "a=-b", "a>x", "x/y/z"]
        {
            assert!(LabelSelector::parse(text).is_err(), "{text}");
        }
        assert_eq!(
            LabelSelector::parse("a ~ b").unwrap_err(),
            "unable to parse requirement: found '~', expected: in, notin, =, ==, !=, gt, lt"
        );
    }
}
