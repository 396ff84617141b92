#!/usr/bin/env python3
"""Check the manifests of scripts/deploy: against schemas, and against the programs.

usage: manifests.py schema | programs
schema needs the Python package kubernetes-validate.
"""
import json
import pathlib
import re
import subprocess
import sys
import tomllib

import yaml

deploy = pathlib.Path('scripts/deploy')


def step(at, key):
    return int(key) if isinstance(at, list) else key


def apply(patch, d):
    """Apply the operations of a JSON patch (RFC 6902) that the files use to a manifest."""
    for o in patch:
        *way, last = [p.replace('~1', '/').replace('~0', '~') for p in o['path'].split('/')[1:]]
        at = d
        for key in way:
            at = at[step(at, key)]
        if o['op'] == 'test':
            assert at[step(at, last)] == o['value'], o
        elif o['op'] == 'remove':
            del at[step(at, last)]
        elif o['op'] == 'add' and isinstance(at, list):
            assert last == '-', o
            at.append(o['value'])
        else:
            assert o['op'] == 'add' or (o['op'] == 'replace' and last in at), o
            at[last] = o['value']


def render(folder, extra=()):
    """The manifests of a kustomization, as (file, manifest), like those of kubectl kustomize.

    It knows resources, components, JSON patches and images.  extra: further components.
    """
    k = yaml.safe_load((folder / 'kustomization.yaml').read_text())
    assert set(k) <= {'apiVersion', 'kind', 'namespace', 'resources', 'components', 'images', 'patches'}, k
    files = [n for n in k.get('resources', []) if n.endswith('.yaml')]
    there = {f.name for f in folder.glob('*.yaml')} - {'kustomization.yaml'}
    assert set(files) == there, f'{folder}: resources are {files}, files are {sorted(there)}'
    out = [(folder / n, d) for n in files for d in yaml.safe_load_all((folder / n).read_text())]
    for n in k.get('resources', []):
        out += [] if n in files else render(folder / n)
    patches = list(k.get('patches', []))
    for n in [folder / n for n in k.get('components', [])] + list(extra):
        component = yaml.safe_load((n / 'kustomization.yaml').read_text())
        assert component['kind'] == 'Component' and set(component) == {'apiVersion', 'kind', 'patches'}, n
        patches += component['patches']
    for p in patches:
        found = [d for _, d in out if d['kind'] == p['target']['kind'] and d['metadata']['name'] == p['target']['name']]
        assert len(found) == 1, p['target']
        apply(yaml.safe_load(p['patch']), found[0])
    images = {i['name']: f"{i['newName']}:{i['newTag']}" for i in k.get('images', [])}
    for _, d in out:
        pod = d['spec'].get('template', {}).get('spec', {}) if images and 'spec' in d else {}
        for c in pod.get('initContainers', []) + pod.get('containers', []):
            c['image'] = images[c['image']]
    return out


kubernetes = deploy / 'kubernetes'
documents = [x for n in ('.', 'metrics', 'gateway') for x in render(kubernetes / n)]      # (file, manifest)
by_kind = {d['kind']: d for _, d in documents}
variants = {f'{n}{" with shared keys" * len(c)}': {d['kind']: d for _, d in render(kubernetes / n, c)}
            for n in ('.', 'gpu') for c in ((), (kubernetes / 'shared-keys',))}

# Custom resources: fields that their published definitions require, and others that may be there.
CUSTOM = {
    'inference.networking.k8s.io/v1 InferencePool': (
        {'selector': dict, 'targetPorts': list, 'endpointPickerRef': dict}, {'appProtocol'}),
    'inference.networking.x-k8s.io/v1alpha2 InferenceObjective': ({'poolRef': dict}, {'priority'}),
    'monitoring.coreos.com/v1 PodMonitor': (
        {'selector': dict, 'podMetricsEndpoints': list}, {'jobLabel', 'namespaceSelector', 'podTargetLabels'}),
}


def schema():
    import kubernetes_validate
    version = kubernetes_validate.latest_version()
    core = 0
    for file, d in documents + [(n, d) for n, kinds in variants.items() for d in kinds.values()]:
        custom = CUSTOM.get(f"{d['apiVersion']} {d['kind']}")
        if custom:
            required, optional = custom
            for field, kind in required.items():
                assert isinstance(d['spec'].get(field), kind), f'{file}: {field} is not a {kind.__name__}'
            assert set(d['spec']) <= set(required) | optional, f"{file}: {set(d['spec']) - set(required) - optional}"
        else:
            kubernetes_validate.validate(d, version, strict=True)
            core += 1
    # a fault must be noticed
    wrong = json.loads(json.dumps(by_kind['Service']))
    wrong['spec']['prots'] = wrong['spec'].pop('ports')
    try:
        kubernetes_validate.validate(wrong, version, strict=True)
    except kubernetes_validate.ValidationError:
        print(f'{core} manifests agree with Kubernetes {version}, {len(documents) + sum(map(len, variants.values())) - core} with custom resources')
    else:
        raise AssertionError('a misspelt field was accepted')


def check_container(c, options):
    assert c['securityContext'] == {'allowPrivilegeEscalation': False, 'readOnlyRootFilesystem': True,
                                    'capabilities': {'drop': ['ALL']}}, c['name']
    assert 'memory' in c['resources']['limits'] and c['resources']['requests'], c['name']
    if c['command'][0] == 'zse-serve':
        for word in c['command']:
            assert not word.startswith('--') or word in options, f'zse-serve has no {word}'


def programs():
    usage = subprocess.run(['zse-serve', '--help'], capture_output=True, text=True, check=True).stdout
    options = set(re.findall(r'--[a-z-]+', usage))
    routes = pathlib.Path('libcommon/serve/routes.c').read_text()
    pod = by_kind['Deployment']['spec']['template']
    server = pod['spec']['containers'][0]
    for job in pod['spec'], by_kind['Job']['spec']['template']['spec']:
        assert job['securityContext']['runAsNonRoot'] and not job['automountServiceAccountToken']
        assert job['securityContext']['seccompProfile'] == {'type': 'RuntimeDefault'}
        for c in job.get('initContainers', []) + job['containers']:
            check_container(c, options)
    for probe, path in ('startupProbe', '/health'), ('readinessProbe', '/health'), ('livenessProbe', '/livez'):
        assert server[probe]['httpGet'] == {'path': path, 'port': 'http'}
        assert f'{{ "GET", "{path}", ROUTE_PLAIN, ACCESS_PUBLIC,' in routes, path
    # SIGTERM comes after preStop, and the drain must fit into what is left
    drain = int(server['command'][server['command'].index('--drain') + 1])
    wait = int(server['lifecycle']['preStop']['exec']['command'][1])
    assert pod['spec']['terminationGracePeriodSeconds'] >= drain + wait + 3
    port = server['ports'][0]['containerPort']
    assert server['command'][server['command'].index('--port') + 1] == str(port)
    assert by_kind['NetworkPolicy']['spec']['ingress'][0]['ports'][0]['port'] == port
    assert by_kind['InferencePool']['spec']['targetPorts'] == [{'number': port}]
    labels = pod['metadata']['labels']
    for selector in (by_kind['Deployment']['spec']['selector']['matchLabels'], by_kind['Service']['spec']['selector'],
                     by_kind['InferencePool']['spec']['selector']['matchLabels'],
                     by_kind['PodMonitor']['spec']['selector']['matchLabels']):
        assert selector.items() <= labels.items(), selector
    metric = by_kind['HorizontalPodAutoscaler']['spec']['metrics'][0]['pods']['metric']['name']
    assert f'METRIC({metric},' in pathlib.Path('libcommon/serve/admin/prometheus.c').read_text(), metric
    for name, kinds in variants.items():
        spec = kinds['Deployment']['spec']
        inner = spec['template']['spec']
        shared, c = 'shared' in name, inner['containers'][0]
        check_container(c, options)
        assert c['image'].endswith('-gpu') == ('nvidia.com/gpu' in c['resources']['limits']) == name.startswith('gpu'), name
        assert c['command'].count('--keys') == shared and ('initContainers' in inner) != shared, name
        assert {m['name'] for x in inner.get('initContainers', []) + [c] for m in x['volumeMounts']} == \
            {v['name'] for v in inner['volumes']}, name
        if shared:
            variable = c['command'][c['command'].index('--keys') + 1]
            assert variable.strip('$()') in {e['name'] for e in c['env']} and spec['replicas'] > 1, name
            assert 5432 in {p['port'] for e in kinds['NetworkPolicy']['spec']['egress'] for p in e['ports']}, name
    compose = yaml.safe_load((deploy / 'compose.yaml').read_text())
    assert {s['profiles'][0]: s['build']['target'] for s in compose['services'].values()} == {'cpu': 'cpu', 'gpu': 'gpu'}
    starts = [json.loads((deploy / 'railway.json').read_text())['deploy']['startCommand'],
              yaml.safe_load((deploy / 'render.yaml').read_text())['services'][0]['dockerCommand'],
              tomllib.loads((deploy / 'fly.toml').read_text())['processes']['app']]
    for start in starts:
        assert 'exec zse-serve' in start and set(re.findall(r'--(?:host|port)\b', start)) <= options, start
    stages = re.findall(r'^FROM .* AS (\S+)$', (deploy / 'Dockerfile').read_text(), re.M)
    assert {'cpu', 'gpu'} <= set(stages) and stages[-1] == 'cpu', stages      # the last stage is the default


{'schema': schema, 'programs': programs}[sys.argv[1]]()
