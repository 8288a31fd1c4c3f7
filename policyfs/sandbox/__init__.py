"""`policyfs run`: an unmodified program in a sandbox that holds the view of SOURCE in SOURCE's place, and nothing else.

The pure half turns values into values: `layout` a sandbox into bubblewrap's arguments, `admission` a place into a reason
why it may not be shown, `environment` one environment into another, `streams.treatment` a descriptor into what is done
with it. The shell around it reads the machine (`machine`), makes the private directory (`run_directory`), sees to the end
after every kind of it (`supervisor`), passes the terminal on (`streams`, `terminal`), confines what bubblewrap does not
(`confine`), and puts these in order (`run`).
"""
