"""The pages behind a run's link: rendered here, one script of ours, nothing from elsewhere.

routes → views, shown → ../reads, ../curves, ../audit_view
sessions: who may look.   render: how it is sent.
"""
