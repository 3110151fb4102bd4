"""The model files of the package: they run, and their published values are correct.

Published values are compared with transcriptions of the printed tables, if available.
"""

import csv
import itertools
import json
import re

import numpy as np
import pytest
from places import MODELS, PUBLISHED

from nrprob import datasets
from nrprob.batch.modelfile import read_model
from nrprob.batch.plan import expand, matches
from nrprob.methods.cmbc.estimator import gamma_to_strength

LABELINGS = {"L1": "page type", "L2": "university"}
FILES = sorted(MODELS.glob("*.toml"))

GONDEK = [
    *(f"Table 8.{i}" for i in [*range(1, 9), *range(10, 25), 26, 27, *range(34, 46)]),
    "Table 9.1",
    *(f"Table 9.2, session {i}" for i in (1, 2, 3)),
    *(f"Table 9.3, {known} known" for known in ("page type", "university")),
]
MEASURES = {
    "PrecA": "precision of A",
    "PrecB": "precision of B",
    "PrecD": "precision of D",
    "Prec_A": "precision of A",
    "Prec_B": "precision of B",
    "NMI_L1": "NMI of page type",
    "NMI_L2": "NMI of university",
    "runtime_s": "seconds",
    "runtime_ratio_seqCCIB_daCCIB": "seconds",
    "runtime_ratio_to_CMBC-pm": "seconds",
    **{f"NMI_{g}": f"NMI of {g}" for g in "ABDE"},
    **{f"NMI(C,{g})": f"NMI of {g}" for g in "ABDE"},
}
STATISTICS = {"best": "max", "worst": "min", "ratio": "mean", "range_max_minus_min": "range"}
FEW_LABELS = ["iris", "diabetes", "wine", "glass", "shuttle"]
YIN = ["Table 3.1", "Table 3.2", "Table 3.3", *(f"Table 4.1, {name}" for name in FEW_LABELS)]
METHODS = {
    "CMBCbu": "daCMBC-bu",
    "CMBCpm": "daCMBC-pm",
    "dIBwS": "daIBwS",
    "ratio": "daCCIB / CondEns[EM]",
    "seqCCIB/daCCIB": "seqCCIB / daCCIB",
    "CCIB cartesian product": "daCCIB",
    "CCIB GLM": "CCIB, GLM",
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_model_file_can_be_planned(path):
    model = read_model(path)
    plan = expand(model)
    assert model.title and plan.cells
    everywhere = {m.label for m in model.methods if not m.where}
    for table in model.tables:
        for setting in table.settings:
            result = {cell.method for cell in plan.cells if matches(cell, setting.where)}
            # A setting without cells would be an empty row, without any message.
            assert result >= everywhere, (table.name, setting.where)
            assert result == {m.label for m in model.methods} or setting.note, setting.where
    for figure in model.figures:
        assert any(matches(cell, figure.where) for cell in plan.cells), figure.name


def test_every_seed_and_setting_is_fitted_once():
    for path in FILES:
        cells = expand(read_model(path)).cells
        assert len({cell.id for cell in cells}) == len(cells), path.name


# published values


def key(table, where, method, measure, statistic):
    return table, json.dumps(where, sort_keys=True), method, measure, statistic


def in_models(source):
    result = {}
    for path in (path for path in FILES if path.stem.startswith(source)):
        for table in read_model(path).tables:
            for setting in table.settings:
                for method, measures in setting.published.items():
                    for measure, statistics in measures.items():
                        for statistic, value in statistics.items():
                            at = key(table.name, setting.where, method, measure, statistic)
                            # Values that two files contain are equal.
                            assert result.setdefault(at, value) == value, at
    return result


def printed(name):
    """Rows of a transcription, for tables with a model file."""
    path = PUBLISHED / name
    if not path.is_file():
        pytest.skip(f"no transcription of the printed tables: {path} is not there")
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            table = "Table " + row["table"].removeprefix("Table ")
            if table == "Table 9.2" and (
                result := re.match("[Ss]ession[ =]([123])", row["setting"])
            ):
                table += f", session {result[1]}"
            if table == "Table 9.3" and (result := re.match(r"WebKB Z=(L\d)", row["setting"])):
                table += f", {LABELINGS[result[1]]} known"
            if row["seed_file"].startswith("000_") and table in GONDEK:
                yield table, row["setting"], row["method"], row["metric"], row["stat"], row["value"]


def where(table, setting):
    """Parameters that a printed setting represents."""
    out = {}
    if table == "Table 9.1":
        return out
    if table.startswith("Table 9.2"):
        return {"p_noise": float(re.search(r"p_noise=([\d.]+)", setting)[1])}
    if table.startswith("Table 9.3"):
        share = float(re.search(r"alpha[=~]([\d.]+)", setting)[1])
        classes = {"page type": 4, "university": 5}[table.split(", ")[1].removesuffix(" known")]
        return {"partial_labels.per_class": round(share * 1087 / classes)}
    if result := re.search(r"\bK ?= ?(\d+)", setting):
        out["n_clusters"] = int(result[1])
    if result := re.search(r"alpha = ([\d.]+)", setting):
        out["orthogonality"] = float(result[1])
    if result := re.search(r"dims ?= ?\[(\d+), ?(\d+)\]", setting):
        out["dims"] = [int(result[1]), int(result[2])]
    if result := re.search(r"m_A=(\d+)", setting):
        out["dims"] = [int(result[1]), 4]
    return out


def expected():
    out = {}
    for file in ("ccib.csv", "cmbc.csv"):
        for table, setting, method, metric, statistic, value in printed(file):
            place, number = where(table, setting), float(value)
            method, statistic = METHODS.get(method, method), STATISTICS.get(statistic, statistic)
            if metric == "runtime_ratio_to_CMBC-pm":
                method += " / CMBC-pm"
            if metric == "percent_improvement_precision":
                sought = {"page type": "university", "university": "page type"}
                known = table.split(", ")[1].removesuffix(" known")
                metric, number = f"precision of {sought[known]}", round(1 + number / 100, 4)
            # The recommended method is compared with the values of Table 9.3, too.
            names = ("daCCIB / EM", "ResidualSpectral / EM") if table[6:9] == "9.3" else (method,)
            # CondEns with k-means has tf-idf weights in a separate file, beside proportions.
            places = [table]
            if table in ("Table 8.26", "Table 8.27") and method == "CondEns[k-means]":
                places.append(f"{table}, tf-idf")
            for name, title in itertools.product(names, places):
                at = key(title, place, name, MEASURES.get(metric, metric), statistic)
                # Of Table 9.2, one row is in both transcriptions.
                assert at not in out or (name == "daIBwS" and out[at] == number), at
                out[at] = number
    return out


def corrected(values):
    """Exchange the rows that Table 8.1 has exchanged, also in other tables."""
    out = dict(values)
    two = json.dumps({"n_clusters": 2})
    other = {"seqCCIB": "daCCIB", "daCCIB": "seqCCIB"}
    for at, value in values.items():
        table, place, method, *rest = at
        if table in ("Table 8.1", "Table 8.5") and place == two and method in other:
            out[(table, place, other[method], *rest)] = value
    da = ("Table 8.7", two, "daCCIB", "precision of A", "mean")
    ensembles = values["Table 8.7", two, "CondEns[EM]", "precision of A", "mean"]
    out[da] = out["Table 8.1", *da[1:]]
    ratio = ("Table 8.7", two, "daCCIB / CondEns[EM]", "precision of A", "mean")
    out[ratio] = round(out[da] / ensembles, 4)
    spread = ("Table 8.8", two, "daCCIB", "precision of B", "range")
    out[spread] = out["Table 8.5", *spread[1:]]
    return out


def test_published_values_are_those_printed():
    as_printed, ours = expected(), in_models("gondek2005")
    right = corrected(as_printed)
    # 2 methods x 7 values of Table 8.1, 2 of Table 8.5, and 2 + 1 that were taken over. Exchanging
    # seqCCIB's 1.0000 at most with daCCIB's 1.0000 changes nothing, which leaves one pair less.
    assert sum(right[at] != as_printed[at] for at in right) == 2 * 7 + 2 + 3 - 2
    tfidf = {"Table 8.26, tf-idf", "Table 8.27, tf-idf"}
    assert {at[0] for at in right} == set(GONDEK) | tfidf
    assert ours.keys() == right.keys()
    assert ours == right


def test_published_lengths_and_errors_are_those_printed():
    path = PUBLISHED / "mdl.csv"
    if not path.is_file():
        pytest.skip(f"no transcription of the printed tables: {path} is not there")
    right = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            table, setting, method = row["table"], row["setting"], row["method"]
            measure, statistic, value = row["metric"], "mean", float(row["value"])
            if table == "Table 3.1":
                place = {"permuted": int(setting.split()[1].removesuffix("%")) / 100}
            elif table == "Table 3.2":
                place = {"keep.digit": [int(digit) for digit in setting.split()[1].split("-")]}
            elif table == "Table 3.3":
                place = {"n_clusters": [int(k) for k in re.findall(r"K\d=(\d)", setting)]}
            elif table == "Table 4.1":
                table, place, measure = f"{table}, {setting.lower()}", {}, "error"
                statistic = row["stat"]
                if statistic == "p":
                    method = method.replace(" vs ", " / ")
                else:
                    value = round(value / 100, 4)  # printed in per cent
            else:
                continue
            right[key(table, place, method, measure, statistic)] = value
    assert {at[0] for at in right} == set(YIN)
    assert len(right) == 4 * 2 * 4 + 2 + 3 * 2 * 5 + 3 * 9 + len(FEW_LABELS) * 5
    assert in_models("yin2007") == right


SHAPES = {
    "Syn1": {"shape": "blobs", "n_clusters": 2},
    "Syn2": {"shape": "blobs", "n_clusters": 3},
    "Syn3": {"shape": "crescents"},
    "Syn4": {"shape": "rings"},
}


def test_published_alternatives_are_those_printed():
    path = PUBLISHED / "naci.csv"
    if not path.is_file():
        pytest.skip(f"no transcription of the printed tables: {path} is not there")
    ours = in_models("dang2010")
    methods = {method for _, _, method, *_ in ours}
    right = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            table, setting, place = row["table"], row["setting"], {}
            if row["method"] not in methods or row["value"] == "NA":
                continue
            if table == "Table 1":
                place = SHAPES[setting]
            elif table == "Table 2":
                place = {"keep.pose": ["left", "right", "straight"]}
            elif table == "Table 3":
                table += f", {setting}"
            else:
                continue
            right[key(table, place, row["method"], row["metric"], "mean")] = float(row["value"])
    compared = {"NACI", "COALA", "Algo1", "Algo2", "ADFT", "CIB", "Dec-kmeans", "ConvEM", "CAMI"}
    # Printed values also belong to variants with the settings of the paper.
    variants = {"NACI, as printed": "NACI", "CAMI, spherical": "CAMI"}
    assert methods == compared | {*variants}
    twice = {at: value for at, value in ours.items() if at[2] in variants}
    assert {at[2] for at in twice} == {*variants}
    for (table, place, method, *rest), value in twice.items():
        assert ours[(table, place, variants[method], *rest)] == value
    assert {at: value for at, value in ours.items() if at not in twice} == right


def test_clusters_left_and_iterations_are_those_printed():
    path = PUBLISHED / "cecib.csv"
    if not path.is_file():
        pytest.skip(f"no transcription of the printed tables: {path} is not there")
    left, iterations = {}, {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["metric"] == "clusters returned":
                left[row["setting"]] = float(row["value"])
            if row["table"] == "Table 3":
                iterations[row["setting"], row["method"]] = float(row["value"])
    result = in_models("smieja2017")
    assert len(result) == 7 * 3 * 2 + len(iterations) == 7 * (3 * 2 + 4)
    for (table, setting, method, measure, statistic), value in result.items():
        number, name = table.split(", ")
        assert statistic == "mean"
        if number == "Table 3":
            assert measure == "iterations" and iterations[name, method] == value
            continue
        share = 0 if method == "without labels" else json.loads(setting)["partial_labels.fraction"]
        assert (number, measure) == ("Table 2", "n_clusters")
        assert left[f"{name}; {round(100 * share)}% labelled"] == value


def test_data_have_the_printed_sizes():
    draws = {2: 400, 3: 700, 4: 1100, 5: 1600}
    models = {path.stem.removeprefix("gondek2005-"): read_model(path) for path in FILES}
    for name in ("plane", "orthogonality", "binary", "cmbc"):
        for case in models[name].data.cases:
            k = case["n_clusters"]
            assert case["n_samples"] == 50 * k**2
            assert name in ("binary", "cmbc") or case["n_draws"] == draws[k]
    for i in (1, 2, 3):
        assert models[f"sessions-{i}"].data.parameters["n_samples"] == 1000
        assert len(models[f"sessions-{i}"].known_names) == i
    weights = {"plane": 0.5, "orthogonality": 0.5, "binary": 0.3, "successive": 0.3}
    weights |= {name: 0.3 for name in models if name.startswith("webkb")}
    for name, weight in weights.items():
        for method in models[name].methods:
            given = method.parameters.get("coordination_weight")
            has_printed = method.label in ("daCCIB", "seqCCIB", "CCIB, fast")
            assert given == (weight if has_printed else None)


def test_penalties_have_the_printed_weights():
    path = PUBLISHED / "cmbc.csv"
    if not path.is_file():
        pytest.skip(f"no transcription of the printed tables: {path} is not there")
    with path.open(encoding="utf-8", newline="") as file:
        gammas = {
            row["metric"]: float(row["value"])
            for row in csv.DictReader(file)
            if row["setting"] == "parameters"
        }
    for path in (path for path in FILES if "sessions" in path.stem):
        methods = {m.label: m.parameters for m in read_model(path).methods}
        for method, gamma in (("daCMBC-bu", "gamma_CMBCbu"), ("daCMBC-pm", "gamma_CMBCpm")):
            strength = gamma_to_strength(gammas[gamma], 1)
            assert methods[method]["strength"] == pytest.approx(strength)
        assert methods["daIBwS"]["gamma"] == gammas["gamma_IBwS"]


def test_as_many_labels_are_told_as_printed():
    for known, classes in (("page", 4), ("university", 5)):
        path = next(path for path in FILES if path.stem.endswith(f"webkb-{known}-labels"))
        partial = read_model(path).partial_labels
        shares = [classes * amount / 1087 for amount in partial.per_class]
        assert shares == pytest.approx([0, 0.05, 0.1], abs=0.002)
        assert partial.score == "unlabelled"


def test_the_four_experiments_with_pairs_are_those_described():
    experiments = [("none", None), ("coin", 1.0), ("coin", 0.4), ("bias", 0.4)]
    for name in ("iris", "wine"):
        model = read_model(FILES[0].with_name(f"yin2007-constraints-{name}.toml"))
        amounts = model.constraints.amounts
        result = dict.fromkeys((a["wrong"], a.get("share")) for a in amounts)
        assert [*result] == experiments
        (split,) = model.split.amounts
        assert (split["labelled"], split["test"], model.runs) == (0.8, 0.2, 10)
        assert not model.split.use_labels and split["standardize"]
        assert len(model.tables) == len(experiments)
        cells = expand(model).cells
        for table in model.tables:
            for setting in table.settings:
                of = [cell for cell in cells if matches(cell, setting.where)]
                assert len(of) == 10 * len(model.methods)


@pytest.mark.parametrize("name", FEW_LABELS)
def test_few_labels_are_told_as_described(name):
    model = read_model(FILES[0].with_name(f"yin2007-semi-supervised-{name}.toml"))
    (split,) = model.split.amounts
    assert (split["labelled"], split["unlabelled"], split["test"]) == (0.1, 0.1, 0.8)
    assert model.split.use_labels and split["standardize"] and model.runs == 100
    methods = {method.label: method for method in model.methods}
    # One restart, no annealing, and a tiny addition to the variances.
    plain = methods["SS-EM"].parameters
    assert plain.items() >= {"anneal": False, "n_init": 1, "covariance": "diag"}.items()
    assert "reg_covar" not in plain
    # The floor is chosen from the given labels, except where its influence is shown.
    for label, method in methods.items():
        if method.name == "mdl_mixture":
            floor = float(label.split()[-1]) if "floor" in label else None
            assert method.parameters.get("variance_floor") == floor
    assert len([label for label in methods if "floor" in label]) in (0, 3)


@pytest.mark.parametrize("name", ["iris", "diabetes", "wine"])
def test_curves_change_one_share_at_a_time(name):
    model = read_model(FILES[0].with_name(f"yin2007-semi-supervised-curves-{name}.toml"))
    table = read_model(FILES[0].with_name(f"yin2007-semi-supervised-{name}.toml"))
    same = {method.label: method.parameters for method in table.methods}
    assert all(method.parameters == same[method.label] for method in model.methods)
    fitted, labelled = {}, {}
    for amount in model.split.amounts:
        total = round(amount["labelled"] + amount["unlabelled"], 9)
        fitted.setdefault(total, []).append(amount["labelled"])
        labelled.setdefault(amount["labelled"], []).append(amount["unlabelled"])
    assert sorted(fitted[0.2]) == [0.02, 0.04, 0.06, 0.08, 0.1]
    assert sorted(labelled[0.1]) == [0, 0.02, 0.05, 0.1]
    exchanged, fewer = model.figures
    cells = expand(model).cells
    for figure, split in ((exchanged, fitted[0.2]), (fewer, labelled[0.1])):
        drawn = [cell for cell in cells if matches(cell, figure.where)]
        assert len(drawn) == len(split) * model.runs * len(model.methods)


def estimators(path):
    """(cell, data, estimator) of every fit of a model file."""
    from nrprob.batch.inputs import assemble_inputs, load_data
    from nrprob.batch.registry import make_estimator

    model = read_model(path)
    for cell in expand(model).cells:
        table = load_data(model, cell.data, cell.seed)
        yield cell, assemble_inputs(model, table, cell), make_estimator(cell.name, cell.parameters)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "first"), [("pendigits", 2), *(("model-selection", k) for k in (2, 3, 4))]
)
@pytest.mark.filterwarnings("ignore::nrprob.DegenerateClusterWarning")
def test_printed_lengths_are_among_those_of_the_starts(name, first, data_dir, monkeypatch):
    """Local optima: every printed one is reached, and the best is no longer."""
    monkeypatch.setenv("NRPROB_DATA", str(data_dir))
    path = FILES[0].with_name(f"yin2007-{name}.toml")
    settings = [s for table in read_model(path).tables for s in table.settings]
    measure = "TDL" if name == "pendigits" else "negative log likelihood"
    seen = 0
    for cell, inputs, estimator in estimators(path):
        if np.ravel(estimator.n_clusters)[0] != first:
            continue
        (setting,) = (s for s in settings if matches(cell, s.where))
        printed = setting.published[cell.method][measure]["mean"]
        runs = estimator.fit(inputs.X).restarts_
        lengths = runs.pdl.values + runs.cdl.values
        assert estimator.tdl_ <= printed + 0.3
        assert abs(lengths - printed).min() < 1, (cell.data, cell.parameters, sorted(lengths))
        seen += 1
    assert seen == (6 if name == "pendigits" else 3)


@pytest.mark.parametrize(
    "path", [p for p in FILES if read_model(p).partial_labels], ids=lambda p: p.stem
)
def test_wanted_labels_can_be_told(path, data_dir, monkeypatch):
    from nrprob.batch import preflight

    monkeypatch.setenv("NRPROB_DATA", str(data_dir))
    model = read_model(path)
    assert preflight.check(expand(model)) == {}
    labels = datasets.load(model.data.loader, **model.data.parameters).labelings
    made = {*labels, *model.data.labelings}
    assert {model.partial_labels.labeling, *model.known_names} <= made
