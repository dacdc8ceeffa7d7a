# command_ledger: build, test, try. 'make help' lists what there is.
# Servers never run as root, and nothing here touches the system's PostgreSQL except 'make install'.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.NOTPARALLEL:

.PHONY: help setup demo test test-pure test-db test-blackbox test-all test-package torture hygiene lint audit bench peers \
	install package clean distclean

help: ## this list
	@echo 'make TARGET, one of:'
	@sed -n 's/^\([a-z-]*\):.*## /  \1\t/p' Makefile | expand -t 18
	@echo 'LEDGER_STATE=DIR (default /var/tmp/command_ledger-USER) holds private servers, tools and test clusters.'

setup: ## install what is missing: PostgreSQL 15, its headers, cargo-pgrx (Debian 12; root or sudo)
	@scripts/bootstrap.sh

demo: ## see it work: a throwaway server, a destination that loses answers, and what the ledger says
	@scripts/demo.sh

test: ## everything below, on PostgreSQL 15, and the main job on 18; the last line is the total
	@scripts/test.sh lint pure db blackbox smoke-18

lint: ## format, clippy, shell scripts, SQL, licences of dependencies
	@scripts/test.sh lint

test-pure: ## the decisions and the wire: needs no PostgreSQL
	@scripts/test.sh pure

test-db: ## tests inside a backend
	@scripts/test.sh db

test-blackbox: ## throwaway clusters, many sessions, kill -9
	@scripts/test.sh blackbox

test-all: ## 'make test' with everything on PostgreSQL 16 and 18 too, and 17 compiled
	@scripts/test.sh lint pure db blackbox db-16 blackbox-16 compile-17 db-18 blackbox-18

torture: ## kills, lies and lost answers against a real cluster, then a checker: make torture SEED=7 MINUTES=60
	@scripts/torture.sh "$(SEED)" "$(MINUTES)"

hygiene: ## the black-box suite on a server with assertions, and the pure crates under AddressSanitizer (builds a server)
	@scripts/hygiene.sh

audit: ## licences, sources and known vulnerabilities of all dependencies
	@scripts/audit.sh

bench: ## measure against hand-written floors: bench/results/DATE.md (QUICK=1: a look in 5 minutes)
	@bench/run.sh

peers: ## real systems (a payment mock, PocketBase, LangGraph, NATS, Tryton) that lose answers; PEERS="stripe nats": only these
	@peers/run.sh $(PEERS)

install: ## build and install into your server: make install PG_CONFIG=/path/to/pg_config
	@scripts/install.sh "$(PG_CONFIG)"

test-package: ## build the package, unpack it into a clean server, do the main job with it (a release build: minutes); MAJORS="16 18"
	@scripts/test.sh $(addprefix package-,$(or $(MAJORS),15))

package: ## Debian packages and their checksums, in dist/
	@scripts/package.sh

clean: ## remove what was built here
	@scripts/clean.sh

distclean: ## clean, and remove LEDGER_STATE as well
	@scripts/clean.sh --state
