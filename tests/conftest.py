from __future__ import annotations


def pytest_addoption(parser):
    parser.addoption(
        "--repeat", type=int, default=1, metavar="N", help="run every scenario of tests/integration N times (default 1)"
    )


def pytest_generate_tests(metafunc):
    if "attempt" in metafunc.fixturenames:
        metafunc.parametrize("attempt", range(metafunc.config.getoption("repeat")))
