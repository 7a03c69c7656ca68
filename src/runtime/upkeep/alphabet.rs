//! Texts for people, with the characters that the database has. A PostgreSQL database of another encoding than UTF-8
//! lacks some, and refuses a statement that has one of them in it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::runtime::batch::handle::Lanes;
use crate::store::verbs::Store;

/// Stands for a character that the database lacks.
const LACKING: char = '?';

/// The characters of a database.
#[derive(Debug)]
pub(crate) struct Alphabet {
    lanes: Arc<Lanes>,
    /// Those that were asked for, and whether the database lacks them. `None`: it lacks none.
    known: Option<Mutex<HashMap<char, bool>>>,
}

impl Alphabet {
    /// `is_whole`: the database lacks no character.
    pub(crate) fn new(lanes: &Arc<Lanes>, is_whole: bool) -> Self {
        Self {
            lanes: Arc::clone(lanes),
            known: (!is_whole).then(Mutex::default),
        }
    }

    /// This text, in which `?` stands for each character that the database lacks.
    pub(crate) async fn legible(&self, text: &Arc<str>) -> Arc<str> {
        match &self.known {
            Some(known) if !text.is_ascii() => {
                let mut legible = String::with_capacity(text.len());
                for character in text.chars() {
                    let lacks = !character.is_ascii() && self.lacks(character, known).await;
                    legible.push(if lacks { LACKING } else { character });
                }
                legible.into()
            }
            _ => Arc::clone(text),
        }
    }

    async fn lacks(&self, character: char, known: &Mutex<HashMap<char, bool>>) -> bool {
        let all = || known.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all().get(&character).copied();
        if let Some(lacks) = found {
            return lacks;
        }
        let head = self.lanes.look(None, "look for a character in");
        let ask = async move |store: &mut dyn Store| store.lacks(character).await;
        match self.lanes.run_aside(head, ask).await {
            Ok(lacks) => {
                all().insert(character, lacks);
                lacks
            }
            // The text may still be sent.
            Err(_) => true,
        }
    }
}
