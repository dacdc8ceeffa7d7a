"""A company, a supplier, and a user who may purchase. Runs in Tryton's own Python environment: python setup.py CONFIG.

Prints the ids of currency, supplier and company.
"""

import sys

from trytond import config

config.update_etc([sys.argv[1]])
from trytond.pool import Pool
from trytond.transaction import Transaction

Pool.start()
pool = Pool("tryton")
pool.init()
with Transaction().start("tryton", 0) as transaction:
    (currency,) = pool.get("currency.currency").create([{"name": "Euro", "code": "EUR", "symbol": "€"}])
    house, supplier = pool.get("party.party").create([{"name": "House"}, {"name": "Supplier"}])
    (company,) = pool.get("company.company").create([{"party": house.id, "currency": currency.id}])
    User, groups = pool.get("res.user"), [group.id for group in pool.get("res.group").search([])]
    mine = {"companies": [("add", [company.id])], "company": company.id, "groups": [("add", groups)]}
    User.write(User.search([("login", "=", "admin")]), mine)
    transaction.commit()
    print(currency.id, supplier.id, company.id)
