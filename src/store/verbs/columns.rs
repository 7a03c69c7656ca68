//! Values from the columns of a row.

/// Reads values of a type from rows with these columns.
macro_rules! read_columns {
    ($($value:ty: $columns:ty => $read:expr;)+) => {
        $(
            impl<'r, R: sqlx::Row> sqlx::FromRow<'r, R> for $value
            where
                $columns: sqlx::FromRow<'r, R>,
            {
                fn from_row(row: &'r R) -> Result<Self, sqlx::Error> {
                    <$columns>::from_row(row).map($read)
                }
            }
        )+
    };
}
pub(super) use read_columns;
