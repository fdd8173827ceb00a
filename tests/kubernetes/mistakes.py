"""Values that the chart of deploy/helm refuses; see tests/kubernetes/chart.py.

Each mistake is one that an operator can make, with words that the error has to have: at least the path of the value. What is
right stands beside it, so that no rule refuses too much.
"""

import subprocess

import helm_python

#: The schema refuses these: values that no object could have.
IMPOSSIBLE = [
    ({"hosts": "esim.example.com"}, "hosts"),
    ({"host": "https://esim.example.com"}, "host"),
    ({"host": "esim.example.com:8080"}, "host"),
    ({"host": "esim.example.com/api"}, "host"),
    ({"host": ""}, "host"),
    ({"images": {"registry": "https://registry.example.com/esim"}}, "registry"),
    ({"images": {"registry": "registry.example.com:70000/esim"}}, "registry"),
    ({"images": {"registry": "registry.example.com/esim/"}}, "registry"),
    ({"images": {"tag": "ingress:0.1.0"}}, "tag"),
    ({"images": {"digests": {"ingress": "latest"}}}, "digests"),
    ({"images": {"digests": {"proxy": "sha256:" + "0" * 64}}}, "proxy"),
    ({"images": {"pullPolicy": "always"}}, "pullPolicy"),
    ({"images": {"pullSecrets": [""]}}, "pullSecrets"),
    ({"providers": []}, "providers"),
    ({"providers": ["sandbox", "usimssa"]}, "providers"),
    ({"providers": ["sandbox", "esim_access"]}, "providers"),
    ({"providers": ["sandbox", "sandbox"]}, "providers"),
    ({"providers": "sandbox"}, "providers"),
    ({"providersSecret": "Esim Providers"}, "providersSecret"),
    ({"publicUrl": "esim.example.com"}, "publicUrl"),
    ({"publicUrl": "https://esim.example.com:99999"}, "publicUrl"),
    ({"publicUrl": "https://esim.example.com?x=1"}, "publicUrl"),
    ({"nats": {"url": "http://nats"}}, "url"),
    ({"nats": {"url": "tls://nats:65536"}}, "url"),
    ({"nats": {"url": "tls://user:password@nats:4222"}}, "url"),
    ({"nats": {"caSecret": "esim_nats"}}, "caSecret"),
    ({"http": {"kind": "Route"}}, "kind"),
    ({"http": {"tlsSecret": "esim tls"}}, "tlsSecret"),
    ({"http": {"parentRefs": [{"kind": "Gateway"}]}}, "parentRefs"),
    ({"http": {"parentRefs": [{"name": "own", "port": 0}]}}, "parentRefs"),
    ({"scaling": {"ingress": {"min": 0}}}, "min"),
    ({"scaling": {"ingress": {"max": "10"}}}, "max"),
    ({"scaling": {"prometheus": "prometheus:9090"}}, "prometheus"),
    ({"scaling": {"prometheus": "http://prometheus:90900"}}, "prometheus"),
    ({"resources": {"ingres": {}}}, "ingres"),
    ({"resources": {"ingress": {"request": {"cpu": "1"}}}}, "resources"),
    ({"resources": {"ingress": {"requests": {"cpu": "one"}}}}, "resources"),
    ({"resources": {"ingress": {"limits": {"memory": "1 GB"}}}}, "resources"),
    ({"priorityClassName": "Orders"}, "priorityClassName"),
    ({"namespaces": {"http": ""}}, "namespaces"),
    ({"namespaces": {"dns": "kube.system"}}, "namespaces"),
    ({"postgres": {"spec": {"instances": 0}}}, "instances"),
    ({"postgres": {"spec": {"storage": {"size": "100GB"}}}}, "storage"),
    ({"postgres": {"spec": {"resources": {"limits": {"memory": "4 Gi"}}}}}, "resources"),
    ({"postgres": {"backup": {"configuration": {"destinationPath": "my-bucket"}}}}, "destinationPath"),
    ({"postgres": {"backup": {"configuration": {"endpointURL": "s3.example.com"}}}}, "endpointURL"),
    ({"externalSecrets": {"store": {"name": ""}}}, "store"),
    ({"externalSecrets": {"store": {"kind": "Vault"}}}, "store"),
    ({"monitoring": {"labels": {"release": "my prometheus"}}}, "labels"),
    ({"test": {"keysSecret": ""}}, "keysSecret"),
]

#: Templates refuse these: values that contradict others, and settings. The error says what to do.
CONTRADICTING = [
    ({"providers": ["usimsa"]}, "sandbox.enabled runs the sandbox provider"),
    ({"providersSecret": ""}, "providers names usimsa, of which no account is known"),
    ({"scaling": {"ingress": {"min": 11}}}, "scaling.ingress: min (11) is more than max (10)"),
    ({"scaling": {"notifier": {"max": 1}}}, "scaling.notifier: min (2) is more than max (1)"),
    ({"scaling": {"fallback": 11}}, "scaling.fallback (11) is more than scaling.provisioner.max (10)"),
    ({"http": {"kind": "Gateway", "parentRefs": []}}, "http.parentRefs names none"),
    ({"postgres": {"backup": {"configuration": {"destinationPath": None}}}}, "destinationPath names no bucket"),
    ({"console": {"openid": True}}, "settings.console.OIDC_ISSUER names none"),
    ({"settings": {"ingress": {"PLACEMENT_WIAT": "2s"}}}, "settings.ingress.PLACEMENT_WIAT: no program has this setting"),
    ({"settings": {"ingress": {"placementWait": "2s"}}}, "settings.ingress.placementWait: no program has this setting"),
    ({"settings": {"ingress": {"PROVIDER_RATE": "10"}}}, "settings.ingress.PROVIDER_RATE: it is a setting of provisioner"),
    ({"settings": {"provisioner": {"AIRALO_URL": "https://x"}}}, "settings.provisioner.AIRALO_URL: no program has this setting"),
    ({"settings": {"ingress": {"PLACEMENT_WAIT": "2"}}}, 'settings.ingress.PLACEMENT_WAIT is "2": write a duration'),
    ({"settings": {"ingress": {"PLACEMENT_WAIT": 2}}}, 'settings.ingress.PLACEMENT_WAIT is "2": write a duration'),
    ({"settings": {"provisioner": {"SETTLE": "-60s"}}}, 'settings.provisioner.SETTLE is "-60s": write a duration'),
    ({"settings": {"stages": {"SHUTDOWN_TIMEOUT": "soon"}}}, 'settings.stages.SHUTDOWN_TIMEOUT is "soon": write a duration'),
    ({"settings": {"provisioner": {"PROVIDER_RATE": "10/s"}}}, 'settings.provisioner.PROVIDER_RATE is "10/s": write a whole number'),
    ({"settings": {"stages": {"REQUIRE_SYNCHRONOUS": "yes"}}}, 'settings.stages.REQUIRE_SYNCHRONOUS is "yes": write true or false'),
    ({"settings": {"ingress": {"LISTEN": "[::]:80"}}}, "settings.ingress.LISTEN: the chart sets it"),
    ({"settings": {"stages": {"NATS_URL": "nats://other:4222"}}}, "settings.stages.NATS_URL: set nats.url"),
    ({"settings": {"provisioner": {"PROVIDERS": "sandbox"}}}, "settings.provisioner.PROVIDERS: set providers"),
    # Secrets, each with where it belongs.
    ({"settings": {"ingress": {"MASTER_KEY": "a:b"}}}, "settings.ingress.MASTER_KEY: it is a secret, and whoever may read config maps"),
    ({"settings": {"notifier": {"MASTER_KEY_WEBHOOKS": "a:b"}}}, "put it into the secret esim-master-webhooks"),
    ({"settings": {"notifier": {"SMTP_URL": "smtps://user:password@relay"}}}, "esim-mail, and set SMTP_URL_FILE: /run/secrets/esim/smtp-url"),
    ({"settings": {"console": {"OIDC_CLIENT_SECRET": "x"}}}, "put it into the secret esim-openid"),
    ({"settings": {"console": {"ALERT_URL": "https://x"}}}, "esim-alerts, and set ALERT_URL_FILE: /run/secrets/esim/alert-url"),
    ({"settings": {"stages": {"QR_KEYS": "x"}}}, "put it into the secret esim-qr"),
    ({"settings": {"notifier": {"DATABASE_URL": "postgres://x"}}}, "put it into the secret esim-db-notifier"),
    ({"settings": {"ingress": {"NATS_PASSWORD": "x"}}}, "put it into the secret esim-nats-ingress"),
    ({"settings": {"common": {"PGPASSWORD": "x"}}}, "settings.common.PGPASSWORD: it is a secret"),
    ({"settings": {"provisioner": {"USIMSA_SECRET_KEY": "x"}}}, "put it into the secret esim-providers"),
    ({"settings": {"provisioner": {"USIMSA_CALLBACK_TOKEN": "x"}}}, "settings.provisioner.USIMSA_CALLBACK_TOKEN: it is a secret"),
]

RIGHT = [
    {"host": "esim.localhost", "publicUrl": "http://esim.localhost:8080/shop"},
    {"images": {"registry": "localhost:5000/esim", "tag": "0.2.0-rc.1_x"}},
    {"images": {"registry": "registry.example.com/my_team/esim-order"}},
    {"nats": {"url": "nats://[fd00::1]:4222", "caSecret": ""}},
    {"providers": ["usimsa", "airalo", "esim-access"], "sandbox": {"enabled": False}},
    {"providers": ["sandbox"], "providersSecret": ""},
    {"providersSecret": "", "settings": {"provisioner": {"USIMSA_URL": "https://usimsa.example.com"}}},
    {"scaling": {"ingress": {"min": 10, "max": 10}, "fallback": 10}},
    {"resources": {"ingress": {"requests": {"cpu": 1, "memory": "512Mi"}, "limits": {"memory": "1.5Gi"}}, "console": {"limits": {"cpu": "250m"}}}},
    {"http": {"kind": "None", "tlsSecret": "", "className": ""}},
    {"settings": {"common": {"LOG": "debug", "OTEL_SERVICE_NAME": "x"}, "stages": {"DATABASE_TIMEOUT": "1s 500ms", "DATABASE_CONNECTIONS": 16}}},
    {"settings": {"ingress": {"QUEUE_DEADLINE": "0", "SHUTDOWN_TIMEOUT": "1m 30s"}, "console": {"CONSOLE_PASSWORDS": False, "CONSOLE_SESSION": "8h"}}},
    # Each unit that the programs read.
    {"settings": {"provisioner": {"PARK_AFTER": "1week"}, "console": {"CONSOLE_SESSION": "1w 2days 3hr"}, "stages": {"DATABASE_TIMEOUT": "3000msec"}}},
    {"settings": {"provisioner": {"PROVIDER_RATE": None, "USIMSA_CALLBACK_TOKEN_FILE": "/run/secrets/esim/token"}}},
    {"settings": {"notifier": {"SMTP_URL_FILE": "/run/secrets/esim/smtp-url", "MAIL_FROM": "esim@example.com"}}},
    {"postgres": {"enabled": False}, "priorityClassName": "system-cluster-critical"},
]


def check(chart, wrong):
    """Calls `wrong` with what is accepted or refused by mistake."""

    def refused(values):
        merged = chart.merge_values(values)
        try:
            chart.validate_schema(merged)
        except helm_python.HelmValuesError as error:
            return "schema", str(error)
        try:
            chart.render(values, name="esim", namespace="esim")
        except helm_python.HelmError as error:
            return "templates", str(error)
        return None, "accepted"

    for by, cases in (("schema", IMPOSSIBLE), ("templates", CONTRADICTING)):
        for values, words in cases:
            refuses, text = refused(values)
            if refuses != by or words not in text:
                wrong(f"values: {values} should be refused by the {by} with {words!r}: {text}")
    for values in RIGHT:
        refuses, text = refused(values)
        if refuses:
            wrong(f"values: {values} is refused by the {refuses}: {text}")
    # All mistakes are named at once.
    _, text = refused({"scaling": {"ingress": {"min": 11}}, "settings": {"ingress": {"LOGS": "debug"}}})
    if "scaling.ingress" not in text or "settings.ingress.LOGS" not in text:
        wrong(f"values: of two mistakes only one is named: {text}")
    # The names are those of the programs.
    printed = subprocess.run(["bash", "-c", 'source deploy/local/lib.sh; echo "${ACCOUNTS[@]}"'], check=True, capture_output=True, text=True)
    known = {"sandbox"} | {account.lower().replace("_", "-") for account in printed.stdout.split()}
    if set(chart.schema["properties"]["providers"]["items"]["enum"]) != known:
        wrong(f"values: the schema's providers are not {sorted(known)}")
