"""The command line. Each command imports what it needs when it is called, so that ``diag --help`` stays quick."""

from diag.processes import leave_current_folder

leave_current_folder()  # before a command, or what it imports, imports anything else
