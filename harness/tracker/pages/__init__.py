"""The tracker's web interface, rendered on the server, with one script and no external resources.

routes → views, reading → ../query/run_queries, ../query/curves, ../query/audit_view
sessions: access to the pages.   render: templates and headers.
"""
