use AddressClass::{
    LinkLocal, Loopback, Metadata, Multicast, Private, Public, Reserved, Unspecified,
};

use super::*;

#[track_caller]
fn check(class: AddressClass, addresses: &[&str]) {
    for text in addresses {
        assert_eq!(classify(text.parse().unwrap()), class, "{text}");
    }
}

#[test]
fn every_ipv4_address_is_of_one_class() {
    check(
        Public,
        &[
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
        ],
    );
    check(
        Public,
        &[
            "128.0.0.0",
            "168.63.129.15",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
        ],
    );
    check(
        Public,
        &[
            "192.0.1.0",
            "192.0.3.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
        ],
    );
    check(
        Private,
        &[
            "10.0.0.0",
            "10.255.255.255",
            "172.16.0.0",
            "172.31.255.255",
            "192.168.0.0",
            "192.168.255.255",
        ],
    );
    check(Private, &["100.64.0.0", "100.100.100.199", "100.127.255.255"]);
    check(Loopback, &["127.0.0.0", "127.0.0.1", "127.255.255.255"]);
    check(LinkLocal, &["169.254.0.0", "169.254.169.253", "169.254.255.255"]);
    check(Multicast, &["224.0.0.0", "239.255.255.255"]);
    check(Unspecified, &["0.0.0.0"]);
    check(
        Reserved,
        &[
            "0.0.0.1",
            "0.255.255.255",
            "192.0.0.0",
            "192.0.0.255",
            "192.0.2.1",
            "192.88.99.1",
            "198.18.0.0",
        ],
    );
    check(
        Reserved,
        &["198.19.255.255", "198.51.100.1", "203.0.113.1", "240.0.0.0", "255.255.255.255"],
    );
}

#[test]
fn every_ipv6_address_is_of_one_class() {
    check(Public, &["2606:4700::1111", "2001:4860:4860::8888", "2a00::1", "2001:200::", "3ffe::1"]);
    check(Private, &["fc00::", "fd00::1", "fdff:ffff::1", "fec0::1"]);
    check(Loopback, &["::1"]);
    check(LinkLocal, &["fe80::1", "febf::1"]);
    check(Multicast, &["ff02::1", "ffff::"]);
    check(Unspecified, &["::"]);
    check(
        Reserved,
        &["2001:db8::1", "3fff::1", "3fff:fff::1", "100::1", "2001:2::1", "2001:20::1", "5f00::1"],
    );
    // A network's own NAT64 (RFC 8215), and what was never given out.
    check(Reserved, &["64:ff9b:1::1", "::2:0:0:0", "4000::1", "1fff::1", "fe00::1"]);
}

#[test]
fn addresses_of_cloud_credential_services_are_classified() {
    check(
        Metadata,
        &["169.254.169.254", "169.254.170.2", "169.254.170.23", "169.254.0.23", "169.254.42.42"],
    );
    check(Metadata, &["100.100.100.200", "168.63.129.16", "192.0.0.192"]);
    check(
        Metadata,
        &["fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fd00:42::42", "fe80::a9fe:a9fe"],
    );
}

#[test]
fn an_ipv6_address_is_no_more_public_than_the_ipv4_address_it_carries() {
    let carriers: [fn(u16, u16) -> String; 5] = [
        |high, low| format!("::ffff:{high:x}:{low:x}"),
        |high, low| format!("64:ff9b::{high:x}:{low:x}"),
        |high, low| format!("2002:{high:x}:{low:x}::1"),
        // Teredo: behind a public server, and through one that is not.
        |high, low| format!("2001:0:808:808::{:x}:{:x}", !high, !low),
        |high, low| format!("2001:0:{high:x}:{low:x}::f7f7:f7f7"),
    ];
    // These are no longer used, or never left a network; not even a public address makes them
    // public.
    let relics: [fn(u16, u16) -> String; 2] = [
        |high, low| format!("::{high:x}:{low:x}"),
        |high, low| format!("::ffff:0:{high:x}:{low:x}"),
    ];
    for (address, class) in [
        ("127.0.0.1", Loopback),
        ("10.0.0.1", Private),
        ("100.64.0.1", Private),
        ("169.254.169.254", Metadata),
        ("168.63.129.16", Metadata),
        ("169.254.1.1", LinkLocal),
        ("224.0.0.1", Multicast),
        ("198.51.100.1", Reserved),
        ("8.8.8.8", Public),
    ] {
        let bits = address.parse::<Ipv4Addr>().unwrap().to_bits();
        let (high, low) = ((bits >> 16) as u16, bits as u16);
        for carrier in carriers {
            check(class, &[&carrier(high, low)]);
        }
        let relic = if class == Public { Reserved } else { class };
        for carrier in relics {
            check(relic, &[&carrier(high, low)]);
        }
    }
}

#[test]
fn each_address_class_has_one_name_for_programs() {
    for class in [Public, Private, Loopback, LinkLocal, Metadata, Multicast, Unspecified, Reserved]
    {
        assert_eq!(serde_json::to_string(&class).unwrap(), format!("\"{}\"", class.as_str()));
    }
}
