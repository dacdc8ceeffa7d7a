//! Basic credentials (RFC 7617), for destinations and for the proxy.

use base64::Engine as _;

/// The value of an authorization header for `user:password`. It is as secret as the password.
#[must_use]
pub fn basic_authorization(user_and_password: &[u8]) -> String {
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(user_and_password))
}

#[cfg(test)]
mod tests {
    use super::basic_authorization;

    #[test]
    fn the_example_of_the_standard_comes_out() {
        assert_eq!(basic_authorization(b"Aladdin:open sesame"), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
    }
}
